"""Benchmarks that ask for a generated answer, as LIT-238 (arXiv 2605.30148) does, one module a task.

Each module has ``doc_to_text(doc)`` (the prompt), ``right(doc)`` (the answer key), ``read(doc, output)`` (the answer
that stands in an output, None when there is none) and ``process_results(doc, results)`` (the metrics). Prompts are
written for instructed models; answers are read by the strict rules in ``extract.py``.
"""
