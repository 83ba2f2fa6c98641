"""The one error a user sees: a sentence that says what, what was got, where, and what to do."""


class DriftlabError(Exception):
    """Bad input or a broken run. The command line prints the sentence and exits with code 2."""


class SpecError(DriftlabError):
    """A run specification that cannot be run as written."""


class MissingDataError(DriftlabError):
    """A model or data folder that is not where it was said to be; the message names the command that fetches it."""


class RunError(DriftlabError):
    """A run directory that cannot be read, continued or written."""


class TrainingError(DriftlabError):
    """Training cannot go on, for example because a reward is not finite."""
