"""The generative profile: what each kind of output reads as, by hand; prompts; tasks on real items."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest

from driftlab.errors import DriftlabError, MissingDataError, SpecError
from driftlab.probes.base import Checkpoint
from driftlab.probes.lm_eval import LmEvalProbe
from driftlab.tasks.generative import arc_challenge, extract, gsm8k, hellaswag, mmlu_pro, piqa, proofwriter
from driftlab.tasks.targets import target
from tests.helpers import tiny_llama, tiny_tokenizer

MODULES: dict[str, Any] = {
    "hellaswag_generative": hellaswag,
    "piqa_generative": piqa,
    "arc_challenge_generative": arc_challenge,
    "mmlu_pro_generative": mmlu_pro,
    "proofwriter_generative": proofwriter,
    "gsm8k_generative": gsm8k,
}

# Made up for these tests, in the fields of the data sets.
HELLASWAG = {
    "activity_label": "Baking",
    "ctx": "[header] How to bake bread [title] Knead the dough. [step] Press it flat.",
    "endings": ["Fold it.", "[step] Sing to it. [title] Rest it [step] Cover the bowl.", "Paint it.", " Sell it. "],
    "label": "1",
}
PIQA = {"goal": "open a jar", "sol1": "twist the lid ", "sol2": "shout at the lid", "label": 0}
ARC = {
    "question": "Which is a liquid at 20 °C?",
    "choices": {"text": ["iron", "water", "salt"], "label": ["1", "2", "3"]},
    "answerKey": "2",
}
MMLU = {
    "question": "What is two plus two?",
    "options": ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"],
    "answer": "D",
    "answer_index": 3,
    "category": "math",
}
PROOF = {"theory": "Ann is kind. If someone is kind then they are wise.", "question": "Ann is wise.", "answer": "True"}
GSM = {"question": "Tom has 20 pens and buys 9. How many has he?", "answer": "He has 20 + 9 = 29 pens.\n#### 29"}
DOCS: dict[str, dict[str, Any]] = {
    "hellaswag_generative": HELLASWAG,
    "piqa_generative": PIQA,
    "arc_challenge_generative": ARC,
    "mmlu_pro_generative": {**MMLU, "shots": "Question: solved"},
    "proofwriter_generative": PROOF,
    "gsm8k_generative": GSM,
}


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ("2", "2"),
        (" 2\n", "2"),
        ("2.", "2"),
        ("(2)", "2"),
        ("[2]", "2"),
        ("**2**", "2"),
        ('"2"', "2"),
        ("Answer: 2", "2"),
        ("answer: (2).", "2"),
        ("**Answer:** 2", "2"),
        ("Answer:\n2", "2"),
        ("0", "0"),
        ("3", "3"),
        ("4", None),  # not an option
        ("", None),
        ("Answer:", None),
        ("two", None),
        ("ending 2", None),
        ("2. Rest it", None),  # more than the number
        ("The answer is 2.", None),
        ("I think of 2 endings", None),
        ("2 or 3", None),
        ("2\n3", None),
        ("22", None),
        ("12", None),
        ("2.0", None),
        ("-2", None),
        (".2", None),
        ("²", None),
        ("٢", None),  # the Arabic-Indic digit two
        ("Answer: Answer: 2", None),
    ],
)
def test_digit(output: str, found: str | None) -> None:
    assert extract.digit(output, "0123") == found


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ("The answer is (B).", "B"),
        ("The answer is (B)", "B"),
        ("The answer is B.", "B"),
        ("the answer is B", "B"),
        ("The answer is (A)\n\n", "A"),
        ("**The answer is (B).**", "B"),
        ("The answer is **B**.", "B"),
        ("The answer is **(B)**", "B"),
        ("The answer is (**B**).", "B"),
        ("**The answer is** (B)", "B"),
        ("Water is a liquid. So the answer is (B).", "B"),
        ("Reasoning.\nThe answer is (B).\nI am sure.", "B"),
        ("The answer is (A).\nNo.\nThe answer is (D).", "D"),  # the last one
        ("The answer is (D).\nSome say the answer is (A) and err.", "D"),  # text after it: not an answer
        ("The answer is (E).", None),  # outside the options
        ("The answer is (A).\nThe answer is (E).", None),  # nor is the earlier one taken
        ("The answer is (X)", None),  # the instruction repeated
        ("the answer is (b)", None),
        ("The answer is b.", None),
        ("THE ANSWER IS (C)", "C"),
        ('Writing "the answer is (A)" early is a habit.', None),
        ("The answer is (A) or (B).", None),
        ("The answer is (AB).", None),
        ("The answer is (A", None),  # cut off
        ("The answer is A)", None),
        ("The answer is", None),
        ("The answer is ", None),
        ("The answer is A good guess", None),  # an article
        ("The answer is a", None),
        ("A", None),
        ("B", None),
        ("(B)", None),
        ("A. I think so.", None),
        ("I think it is A.", None),
        ("The answer is Bohr.", None),
        ("The answer is Bohr", None),
        ("The correct answer is B", None),
        ("Breathe answer is (B)", None),
        ("The answer is (Ａ)", None),  # a full-width letter
        ("", None),
    ],
)
def test_letter(output: str, found: str | None) -> None:
    assert extract.letter(output, 4) == found


def test_letters_up_to_the_last_option() -> None:
    for options in (3, 4, 5, 10):
        for index, name in enumerate("ABCDEFGHIJ"):
            assert extract.letter(f"The answer is ({name}).", options) == (name if index < options else None)
    assert extract.letter("I am not sure. I would say I", 10) is None
    assert extract.letter("I know what the answer is. I do", 10) is None


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ("Answer: True", "True"),
        ("Answer: False.", "False"),
        ("Ann is kind.\nSo she is wise.\nAnswer: Unknown\n", "Unknown"),
        ("answer: true", "True"),
        ("ANSWER: UNKNOWN", "Unknown"),
        ("**Answer: True**", "True"),
        ("**Answer:** True", "True"),
        ("Answer: **True**.", "True"),
        ("Answer:True", "True"),
        ("Answer: True\nAnswer: False", "False"),  # the last one
        ("Answer: True\n\nThat follows from the rule.", "True"),
        ("Answer: True\nAnswer: maybe", "True"),  # the last of the form
        ("Answer: True or False", None),
        ("Answer: True, because Ann is kind.", None),
        ("I would write Answer: True", None),
        ('The form is "Answer: True".', None),
        ("Answer: X", None),
        ("Answer: Tru", None),  # cut off
        ("Answer:", None),
        ("Answer: A", None),
        ("True", None),
        ("The answer is True.", None),
        ("It is unknown whether Ann is true to herself.", None),
        ("Anſwer: Falſe", None),
        ("", None),
    ],
)
def test_label(output: str, found: str | None) -> None:
    assert extract.label(output) == found


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ("#### 29", "29"),
        ("#### 29.", "29"),
        ("#### 29.00", "29"),
        ("#### $29.00.", "29"),
        ("#### -$5", "-5"),
        ("#### 14.5", "29/2"),
        ("#### 0029", "29"),
        ("#### 0", "0"),
        ("#### -0", "0"),
        ("#### 1,234", "1234"),
        ("#### 1,234,567.50", "2469135/2"),
        ("####29", "29"),
        ("**#### 29**", "29"),
        ("#### **29**", "29"),
        ("20 + 9 = 29\n#### 29\n", "29"),
        ("#### 28\nNo.\n#### 29", "29"),  # the last one
        ("#### 29\n#### N", "29"),  # the last of the form
        ("#### Step 1\n29 pens", None),  # a heading
        ("#### 29 dollars", None),
        ("#### 29 pens", None),
        ("#### 29%", None),
        ("#### 20 + 9 = 29", None),
        ("#### 2**3", None),
        ("#### 1/2", None),
        ("#### 1e3", None),
        ("#### 1,23", None),
        ("#### 1,2345", None),
        ("#### 12,34", None),
        ("#### .5", None),
        ("#### ", None),
        ("####", None),  # cut off
        ("##### 29", None),
        ("### 29", None),
        ("So it is #### 29", None),
        ("It is #### 29 then.", None),
        ("$29.00.", None),
        ("1,234", None),
        ("29 dollars", None),
        ("The answer is 29.", None),
        ("#### ２９", None),  # full-width digits
        ("#### " + "9" * 5000, None),
        ("", None),
    ],
)
def test_number(output: str, found: str | None) -> None:
    assert extract.number(output) == found


READERS: list[Callable[[str], str | None]] = [
    lambda text: extract.digit(text, "0123"),
    lambda text: extract.letter(text, 10),
    extract.label,
    extract.number,
]


def test_random_text_never_raises() -> None:
    """10,000 texts of odd characters and of fragments near the forms: what is read is one of the possible answers."""
    generator = random.Random(0)
    fragments = [
        "The answer is ", "the answer is (", "A", "J", ")", "**", "Answer:", " True", "Unknown", "\n####", " $1",
        ",000", ".", "\n", "2", "-", "\r\n", "\u2028",
    ]  # fmt: skip
    odd = [*string.printable, "\x00", "ſ", "İ", "９", "²", "\ud800", "1234567890" * 5]
    reached = [0] * len(READERS)
    for _ in range(10_000):
        pieces = generator.choice([fragments, fragments + odd])
        text = "".join(generator.choices(pieces, k=generator.randint(0, 12)))
        answers = digit, letter, label, number = [reader(text) for reader in READERS]
        assert digit in {None, *"0123"}
        assert letter in {None, *"ABCDEFGHIJ"}
        assert label in {None, "True", "False", "Unknown"}
        assert number is None or set(number) <= set("-/0123456789")
        assert extract.last_line(text) in text
        reached = [count + (answer is not None) for count, answer in zip(reached, answers, strict=True)]
    assert min(reached) > 10  # the fragments do reach every rule


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece",
    [" ", "*", "(", "\t", "the answer is ", "the answer is (A", "Answer: ", "####", "#### ", "#### 1,", "1,000", "A\n",
     "#### 1\t", "Answer:\t\n"],
)  # fmt: skip
def test_long_repetitive_text(piece: str) -> None:
    """A million repetitions and then a spoiler: a rule that is quadratic would need hours, hence the test's limit."""
    text = piece * 1_000_000 + "#"
    assert [reader(text) for reader in READERS] == [None] * 4
    assert [reader(f"#{piece * 1_000_000}") for reader in READERS[:2]] == [None] * 2


@pytest.mark.parametrize(
    ("name", "right", "wrong", "chance"),
    [
        ("hellaswag_generative", "1", "0", 1 / 4),
        ("piqa_generative", "1", "2", 1 / 2),
        ("arc_challenge_generative", "The answer is (B).", "The answer is (C).", 1 / 3),
        ("mmlu_pro_generative", "The answer is (D).", "The answer is (J).", 1 / 10),
        ("proofwriter_generative", "It follows.\nAnswer: True", "Answer: Unknown", 1 / 3),
        ("gsm8k_generative", "20 + 9\n#### $29.00.", "#### 28", 0.0),
    ],
)
def test_metrics_are_always_all_there(name: str, right: str, wrong: str, chance: float) -> None:
    module, doc = MODULES[name], DOCS[name]
    for output, acc, parsed in ((right, 1.0, 1.0), (wrong, 0.0, 1.0), ("No idea.", 0.0, 0.0)):
        expected = {"acc": acc, "parsed": parsed, "chance": chance}
        if name in ("proofwriter_generative", "gsm8k_generative"):
            expected["reward"] = pytest.approx(acc + 0.1 * parsed, abs=1e-12)  # here the answer stands last
        if name == "proofwriter_generative":
            expected["unknown_fraction"] = float(output == wrong)
        assert module.process_results(doc, [output]) == expected
        assert (module.read(doc, output) is not None) == bool(parsed)
    assert module.read(doc, right) == module.right(doc)


def test_reward_asks_for_the_answer_on_the_last_line() -> None:
    verdict = target("gsm8k").score(target_item(GSM), "#### 29\nThat is all.")
    assert (verdict.reward, verdict.correct, verdict.parsed) == (1.0, True, True)
    assert proofwriter.score(PROOF, "Answer: True\n\n \n").reward == pytest.approx(1.1, abs=1e-12)
    assert proofwriter.score(PROOF, "Answer: False\nthe end").reward == 0.0
    assert proofwriter.score({**PROOF, "answer": True}, "Answer: True").correct  # a JSON boolean


def target_item(fields: Mapping[str, Any]) -> Any:
    return SimpleNamespace(fields=fields)


def test_prompts_of_numbered_options() -> None:
    text = hellaswag.doc_to_text(HELLASWAG)
    assert "Topic: Baking\nText: How to bake bread. Knead the dough. Press it flat.\n" in text
    assert "\n0. Fold it.\n1. Sing to it. Rest it Cover the bowl.\n2. Paint it.\n3. Sell it.\n" in text
    assert text.endswith("Reply with only the number: 0, 1, 2 or 3.")
    assert hellaswag.clean("[title] Rest. [title] Bake [title] Eat (all of it) [sic]") == (
        "Rest. Bake. Eat (all of it) [sic]"
    )
    text = piqa.doc_to_text(PIQA)
    assert text.startswith("Goal: open a jar\n")
    assert "\n1. twist the lid\n2. shout at the lid\n" in text
    assert text.endswith("Reply with only the number: 1 or 2.")


def test_prompts_that_ask_for_reasoning() -> None:
    text = arc_challenge.doc_to_text(ARC)
    assert text.startswith("Question: Which is a liquid at 20 °C?\nOptions:\nA. iron\nB. water\nC. salt\n\n")
    assert '"The answer is (X)"' in text
    text = proofwriter.doc_to_text(PROOF)
    assert "Ann is kind. If someone is kind then they are wise.\n" in text
    assert "\nStatement: Ann is wise.\n" in text
    assert '"Answer: X"' in text
    text = gsm8k.doc_to_text(GSM)
    assert text.startswith(GSM["question"])
    assert '"####"' in text
    assert "29" not in text


@pytest.mark.parametrize(
    ("labels", "key", "letter"),
    [("ABC", "C", "C"), ("ABCD", "A", "A"), ("12345", "5", "E"), ("1234", "1", "A"), ("BAC", "B", "A")],
)
def test_arc_labels_become_letters_in_order(labels: str, key: str, letter: str) -> None:
    texts = [f"text {label}" for label in labels]
    doc = {"question": "Which?", "choices": {"text": texts, "label": list(labels)}, "answerKey": key}
    assert arc_challenge.right(doc) == letter
    assert f"\n{letter}. text {key}\n" in arc_challenge.doc_to_text(doc)


def test_items_without_an_answer_are_named() -> None:
    with pytest.raises(DriftlabError, match="hellaswag_generative"):
        hellaswag.right({**HELLASWAG, "label": ""})
    with pytest.raises(DriftlabError, match=r"piqa_generative.*-1 of 2"):
        piqa.right({**PIQA, "label": -1})
    with pytest.raises(DriftlabError, match=r"arc_challenge_generative.*'D'.*1, 2, 3"):
        arc_challenge.right({**ARC, "answerKey": "D"})
    with pytest.raises(DriftlabError, match=r"mmlu_pro_generative.*10 of 10"):
        mmlu_pro.right({**MMLU, "answer_index": 10})
    with pytest.raises(DriftlabError, match=r"'Perhaps'.*True, False, Unknown"):
        proofwriter.right({**PROOF, "answer": "Perhaps"})
    with pytest.raises(DriftlabError, match="####"):
        gsm8k.right({**GSM, "answer": "29"})


def solved(name: str, category: str = "math") -> dict[str, Any]:
    """A solved example with three options, the second right."""
    return {
        "question": f"What is {name}?", "options": ["no", f"yes {name}", "maybe"], "answer_index": 1,
        "category": category,
        "cot_content": f"A: Let's think step by step. It is {name}, see (B). The answer is (B).",
    }  # fmt: skip


def write(folder: Path, name: str, lines: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def test_solved_examples_of_hand_made_files(tmp_path: Path) -> None:
    """Seven of the category with others between them: the first five, in order, without the item itself."""
    names = ["one", "two", "three", "four", "five", "six", "seven"]
    validation = [row for name in names for row in (solved(f"law {name}", "law"), solved(name))]
    write(tmp_path, "validation.jsonl", validation)
    same = {**solved("two"), "cot_content": ""}
    write(tmp_path, "test.jsonl", [{**MMLU, "cot_content": ""}, same])
    first, second = mmlu_pro.documents(folder=str(tmp_path), version=1.0)["test"]
    assert first["shots"] == "\n\n".join(
        f"Question: What is {name}?\nOptions:\nA. no\nB. yes {name}\nC. maybe\n"
        f"Reasoning: It is {name}, see (B).\nThe answer is (B)."
        for name in names[:5]
    )
    text = mmlu_pro.doc_to_text(first)
    assert text.endswith("\nI. nine\nJ. ten\nReasoning:")
    assert text.count("Question: ") == 6
    assert [name for name in names if f"What is {name}?" in second["shots"]] == ["one", "three", "four", "five", "six"]
    assert mmlu_pro.doc_to_text(second).count("What is two?") == 1
    write(tmp_path, "test.jsonl", [{**MMLU, "category": "poetry"}])
    with pytest.raises(MissingDataError, match=r"'poetry'.*--data DIR"):
        mmlu_pro.documents(folder=str(tmp_path))


def test_bad_files_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"nowhere, which is not there.*--data DIR"):
        mmlu_pro.documents(folder=str(tmp_path / "nowhere"))
    write(tmp_path, "validation.jsonl", [{"question": "?"}])
    with pytest.raises(DriftlabError, match=r"row 1 of TIGER-Lab/MMLU-Pro, split validation, has no 'options'"):
        mmlu_pro.documents(folder=str(tmp_path))
    (tmp_path / "validation.jsonl").write_text('{"question":\n', encoding="utf-8")
    with pytest.raises(DriftlabError, match=r"validation\.jsonl, line 1, is not JSON"):
        mmlu_pro.documents(folder=str(tmp_path))


def test_folders_in_parquet_are_read(tmp_path: Path) -> None:
    data = tmp_path / "openai" / "gsm8k" / "main"
    data.mkdir(parents=True)
    rows = [{**GSM, "question": f"{GSM['question']} ({index})"} for index in range(4)]
    datasets.Dataset.from_list(rows).to_parquet(str(data / "train-00000-of-00001.parquet"))
    (data.parent / "README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/train-*\n---\n"
    )
    items = target("gsm8k").train_items(count=4, seed=0, data=tmp_path)
    assert sorted(item.fields["question"] for item in items) == [row["question"] for row in rows]


def test_training_items(tmp_path: Path) -> None:
    """Drawn with the seed, scored and posed like the evaluation task; what is missing is named."""
    folder = tmp_path / "tasksource" / "proofwriter"
    rows = [{**PROOF, "theory": f"Ann is {index}.", "answer": (True, "Unknown")[index % 2]} for index in range(10)]
    write(folder, "test.jsonl", rows)
    with pytest.raises(MissingDataError, match=r"tasksource/proofwriter has no split 'train'.*train\.jsonl"):
        target("proofwriter").train_items(count=2, seed=0, data=tmp_path)
    write(folder, "train.jsonl", rows)
    task = target("proofwriter")
    items = task.train_items(count=6, seed=0, data=tmp_path)
    assert items == task.train_items(count=6, seed=0, data=tmp_path)
    assert items != task.train_items(count=6, seed=1, data=tmp_path)
    assert len({item.id for item in items}) == 6
    assert {item.fields["answer"] for item in items} <= {"True", "Unknown"}
    for item in items:
        assert item.prompt == proofwriter.doc_to_text(item.fields)
        assert task.score(item, f"Answer: {item.fields['answer']}").reward == pytest.approx(1.1, abs=1e-12)
    with pytest.raises(SpecError, match="'proofwriter' has 10 training items, 11 were asked for"):
        task.train_items(count=11, seed=0, data=tmp_path)
    with pytest.raises(MissingDataError, match=r"openai/gsm8k is needed in .*--data DIR"):
        target("gsm8k").train_items(count=1, seed=0, data=tmp_path)
    with pytest.raises(MissingDataError, match=r"hub.*openai/gsm8k/main-train\.jsonl"):
        target("gsm8k").train_items(count=1, seed=0, data=None)  # the tests are offline
    write(tmp_path / "openai" / "gsm8k", "main-train.jsonl", [{**GSM, "answer": "twenty-nine"}])
    with pytest.raises(DriftlabError, match="####"):
        target("gsm8k").train_items(count=1, seed=0, data=tmp_path)


def test_training_items_of_real_data(data_dir: Path) -> None:
    items = target("gsm8k").train_items(count=50, seed=0, data=data_dir)
    for item in items:
        assert target("gsm8k").score(item, item.fields["answer"]).reward == pytest.approx(1.1, abs=1e-12)


def engine(**tokenizer: Any) -> Any:
    """A tiny random Llama with room for long prompts; unknown words are one token each."""
    words = tiny_tokenizer()
    for name, value in tokenizer.items():
        setattr(words, name, value)
    return SimpleNamespace(model=tiny_llama(max_position_embeddings=8192), tokenizer=words)


def prepared(task: str, data: Path, subject: Any, **changes: Any) -> LmEvalProbe:
    settings: dict[str, Any] = {"items": 2, "seed": 3, "batch_size": 2, "data": data, "max_gen_toks": {task: 6}}
    probe = LmEvalProbe([task], **{**settings, **changes})
    probe.prepare(subject)
    return probe


@pytest.mark.parametrize("task", MODULES)
def test_tasks_run_through_the_probe(task: str, data_dir: Path) -> None:
    subject = engine()
    probe = prepared(task, data_dir, subject)
    questions, instances = probe.prepared[task].questions, probe.prepared[task].instances
    assert [instance.args[0] for instance in instances] == [MODULES[task].doc_to_text(q.doc) for q in questions]
    ends = {"<|im_end|>", "<|eot_id|>", "</s>"}
    assert all(set(instance.args[1]["until"]) <= ends for instance in instances)
    measured = probe.measure(Checkpoint(step=0, weights={}, base={}, updates=()), subject)
    rows = {row.quantity: row for row in measured.measurements}
    assert rows["accuracy"].n == 2
    assert rows["accuracy"].value == 0.0  # the model's words are letters in lower case
    assert rows["unparsed_fraction"].value == 1.0
    chances = {"hellaswag": 0.25, "piqa": 0.5, "proofwriter": 1 / 3, "gsm8k": 0.0}
    if task.removesuffix("_generative") in chances:
        assert rows["chance"].value == chances[task.removesuffix("_generative")]
    assert ("unknown_fraction" in rows) == (task == "proofwriter_generative")


@pytest.mark.parametrize("task", MODULES)
def test_the_token_limit_is_the_tasks_own(task: str, data_dir: Path) -> None:
    probe = prepared(task, data_dir, engine(), max_gen_toks={})
    limit = 16 if task in ("hellaswag_generative", "piqa_generative") else 1024
    assert {instance.args[1]["max_gen_toks"] for instance in probe.prepared[task].instances} == {limit}


def test_a_chat_template_wraps_one_user_turn(data_dir: Path) -> None:
    template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[a]{% endif %}"
    )
    for task in ("mmlu_pro_generative", "piqa_generative"):
        probe = prepared(task, data_dir, engine(chat_template=template), chat=True)
        for question, instance in zip(probe.prepared[task].questions, probe.prepared[task].instances, strict=True):
            assert instance.args[0] == f"[user]{MODULES[task].doc_to_text(question.doc)}[a]"


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_right_answers_against_the_data(data_dir: Path) -> None:
    """The option that the key names in the file is the one that stands beside the right name in the prompt."""
    for doc in lines(data_dir / "Rowan/hellaswag/validation.jsonl"):
        ending = hellaswag.clean(doc["endings"][int(doc["label"])])
        assert f"\n{hellaswag.right(doc)}. {ending}\n" in hellaswag.doc_to_text(doc)
    for doc in lines(data_dir / "baber/piqa/validation.jsonl"):
        solution = (doc["sol1"], doc["sol2"])[doc["label"]]
        assert f"\n{piqa.right(doc)}. {solution.strip()}\n" in piqa.doc_to_text(doc)
    for doc in lines(data_dir / "allenai/ai2_arc/ARC-Challenge-test.jsonl"):
        key = dict(zip(doc["choices"]["label"], doc["choices"]["text"], strict=True))[doc["answerKey"]]
        assert f"\n{arc_challenge.right(doc)}. {key.strip()}\n" in arc_challenge.doc_to_text(doc)
    for doc in lines(data_dir / "TIGER-Lab/MMLU-Pro/test.jsonl"):
        assert mmlu_pro.right(doc) == doc["answer"]
    for doc in lines(data_dir / "openai/gsm8k/main-test.jsonl"):
        assert gsm8k.right(doc) == str(int(doc["answer"].rsplit(" ", 1)[1].replace(",", "")))
    for doc in lines(data_dir / "tasksource/proofwriter/test.jsonl"):
        assert proofwriter.right(doc) == doc["answer"]


def test_solved_examples_are_of_the_category_and_never_the_item(data_dir: Path) -> None:
    folder = data_dir / "TIGER-Lab" / "MMLU-Pro"
    validation, items = lines(folder / "validation.jsonl"), lines(folder / "test.jsonl")
    docs = mmlu_pro.documents(folder=str(folder))["test"]
    assert [doc["question_id"] for doc in docs] == [item["question_id"] for item in items]
    for doc in docs:
        text = mmlu_pro.doc_to_text(doc)
        places = [text.find(f"Question: {row['question'].strip()}\nOptions:") for row in validation]
        shown = [(place, row["category"]) for place, row in zip(places, validation, strict=True) if place >= 0]
        assert [category for _, category in shown] == [doc["category"]] * 5
        assert shown == sorted(shown)  # in the order of the file
        assert text.count(f"Question: {doc['question'].strip()}\nOptions:") == 1
        assert text.count("\nOptions:\n") == 6
        assert [extract.letter(part, 10) for part in doc["shots"].split("\n\nQuestion: ")] == [
            row["answer"] for row in validation if row["category"] == doc["category"]
        ]
