"""Fuzz all kinds of files, or replay one case: ``python -m fuzz --help``."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

# before anything that starts threads is imported: workers are forked
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--kinds", default="all", help="names, or files, codecs, all, by commas")
    parser.add_argument("--seconds", type=float, default=600, help="time for each kind of file")
    parser.add_argument("--codec-seconds", type=float, default=120, help="time for each codec")
    parser.add_argument("--cases", type=int, help="maximum number of cases of each kind")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--step", type=int, default=1, help="try one case of so many")
    parser.add_argument("--minutes", type=float, help="time for this run; the next run resumes")
    parser.add_argument("--state", type=Path, help="folder of findings and progress")
    parser.add_argument("--replay", metavar="KIND:CASE", help="repeat one case")
    parser.add_argument("--keep", type=Path, help="folder for the files of the replayed case")
    parser.add_argument("--corpus", type=Path, help="compare both readers of HDF5 on real files")
    parser.add_argument("--list", action="store_true", help="list the kinds")
    parser.add_argument("--summary", action="store_true", help="only show the known findings")
    parser.add_argument("--lenient", action="store_true", help="list files that only we read")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    from fuzz.campaign import Campaign, replay
    from fuzz.kinds import CODEC, matching, names

    temporary = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
    work = Path(tempfile.mkdtemp(prefix="virtualds-fuzz-", dir=temporary))
    try:
        if options.list:
            print("\n".join(names()))
            return 0
        if options.corpus:
            from fuzz.corpus import compare_corpus

            return not compare_corpus(options.corpus, work)
        if options.replay:
            name, _, number = options.replay.rpartition(":")
            case = replay(name, int(number), work, options.keep)
            print(f"seed {case.seed!r}, files {case.print}")
            print("ours:", case.ours)
            for answer in case.natives:
                print("native:", answer)
            for finding in case.findings:
                print(f"\n{finding.what}: {finding.sign}\n{finding.detail}")
            return bool(case.findings)
        state = options.state or Path(tempfile.gettempdir()) / "virtualds-fuzz"
        campaign = Campaign(state, work, options.first, options.step)
        ends = time.monotonic() + 60 * (options.minutes or 1e9)
        for name in [] if options.summary else matching(options.kinds.split(",")):
            seconds = options.codec_seconds if name.startswith(CODEC) else options.seconds
            done = campaign.progress[name].seconds if name in campaign.progress else 0.0
            seconds = min(seconds, done + max(0.0, ends - time.monotonic()))
            if seconds > done:
                campaign.run(name, seconds, options.cases)
        print(campaign.summary())
        if options.lenient:
            print(campaign.lenience())
        return any(progress.signs for progress in campaign.progress.values())
    finally:
        import shutil

        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(main())
