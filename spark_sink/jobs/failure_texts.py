"""What a job says about a failure: its cause on one line, and the remedy if it is known.

The package's own errors have both in their message (`spark_sink.errors`). Those of Java, Python and
Spark are recognised here by their words.
"""

from __future__ import annotations

import re

from spark_sink.errors import FULL_DISK, SourceError, within_limit

# Causes that Java, Python or Spark report in their own words, and the words for an operator.
_REMEDIES = {
    **dict.fromkeys(
        FULL_DISK,
        "a disk is full: free space where the job writes (--out, --checkpoint, spark.local.dir, "
        "by default /tmp), and start it again; it continues from its checkpoint",
    ),
    "Could not parse Master URL": "spark.master in --conf is not an address of Spark: write "
    "local[4], spark://host:7077, yarn or k8s://https://host:port",
    "File name too long": "the name of a collection or of a topic is too long for a folder: leave "
    "its events out (--option collection.exclude.list or pipeline)",
    "Cannot create directory": "the job's folder cannot be made: correct --out, or let the job's "
    "user write there",
    "Read-only file system": "a folder is on a file system that is mounted read-only: mount it "
    "for writing, or correct --out, --checkpoint or spark.local.dir",
    "Permission denied": "a file or folder belongs to another user: let the job's user write to "
    "--out, --checkpoint and spark.local.dir, by default /tmp",
    "Python worker failed to connect back": "a Python process of Spark's did not start in time, "
    "because the machine is too busy: stop other programs or give Spark fewer tasks (--conf "
    "spark.master=local[2]), and start it again; it continues from its checkpoint",
    "Python worker exited unexpectedly": "a Python process of Spark's has ended, most often for "
    "lack of memory: give the hosts more (spark.executor.memoryOverhead), or start the job with "
    "smaller batches (--option maxEventsPerTrigger=50000, or fewer)",
    "No module named": "the Python that Spark starts on each host (PYSPARK_PYTHON) lacks a "
    "package: install pymongo, pyarrow and numpy there",
    "Java heap space": "Spark has too little memory: start the job with --conf "
    "spark.driver.memory=4g, or more if it has that, or with smaller batches (--option "
    "maxEventsPerTrigger=50000, or fewer)",
}
# The names of classes in reports: of all with a package, such as pyarrow.lib.ArrowInvalid.
_QUALIFIED, _ERROR = r"([\w$]+\.)+[A-Z][\w$]*", "(Error|Exception)"
_LOST_FILE = ("No such file", "does not exist", "not found", "NoSuchKey")
"""Words for a file that is gone, and not one that a storage does not return just now."""
_REMEDIES_OF_LOST_FILES = {
    "/current/_changes/": "another start of the job has removed what this one was about to "
    "commit: run one process for each --out; nothing is lost",
    "/keyRange=": "a file of the table current is lost: restore it, or remove "
    "the table and let job rebuild make it again from bronze",
}


def cause_of(error: BaseException) -> str:
    """Return the cause of a failure on one line, at most 500 characters.

    It is this package's own message without Spark's text around it. For another kind of failure it
    is the innermost cause that Java or Python reports, after a remedy if there is one.
    """
    text = str(error)
    if isinstance(error, SourceError):
        return text
    if own := re.search(r"\bspark_sink\.[\w.]+Error: (.+)", text):
        return within_limit(own[1])
    cause = _innermost(text)
    is_lost = any(words in cause for words in _LOST_FILE)
    for words, remedy in {**_REMEDIES, **(_REMEDIES_OF_LOST_FILES if is_lost else {})}.items():
        if words in cause:
            return within_limit(f"{remedy} ({cause})")
    return within_limit(cause)


def _innermost(text: str) -> str:
    """Return the last cause in a report of Java or Python, without stack and class names.

    A cause with a message is preferred: the end of a Python process causes a bare EOFException.
    """
    lines = [line for line in text.splitlines() if not re.match(r"\s+(at |\.\.\. |File )", line)]
    caused = [line for line in lines if line.startswith("Caused by: ")]
    caused = [line for line in caused if ": " in line.removeprefix("Caused by: ")] or caused
    thrown = [line for line in lines if re.match(rf"(: )?({_QUALIFIED}|[\w.$]+{_ERROR}): ", line)]
    line = (caused or thrown or lines[:1] or [text])[-1]
    query = r"\[\w+\] Query \[.*?\] terminated with exception: "
    names = rf"({_QUALIFIED}: )?([\w.$]*{_ERROR}: )*"
    plain = re.sub(rf"^(Caused by: |: )?({query})?{names}", "", line)
    return re.sub(r"(Detail: )?\[[Ee]rrno \d+\] ", "", plain)
