"""`python -m spark_sink.jobs.to_parquet`: a change stream into Parquet files, exactly once."""

from __future__ import annotations

import argparse
import sys

from pyspark.errors import AnalysisException

from spark_sink.jobs.running import EndRequest, cause_of, run_to_end
from spark_sink.session import local_session


def main() -> int:
    """Run the query until it fails or a signal ends it; a restart goes on from the checkpoint.

    Returns the exit status: 0 after a signal, with the batch under way committed; 1 after a
    failure, whose cause is the last line on standard error.
    """
    args = _arguments()
    end = EndRequest()
    end.listen()
    spark = local_session("mergerouter to Parquet")
    try:
        source = spark.readStream.format("mergerouter").option("uri", args.uri)
        for name, value in _options(args).items():
            source = source.option(name, value)
        query = (
            source.load()
            .writeStream.format("parquet")
            .option("path", args.out)
            .option("checkpointLocation", args.checkpoint)
            .trigger(processingTime=args.trigger)
            .start()
        )
        return run_to_end(query, end)
    except AnalysisException as error:
        print(f"error: {cause_of(error)}", file=sys.stderr)  # noqa: T201
        return 1
    finally:
        spark.stop()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="spark_sink.jobs.to_parquet", description=__doc__)
    parser.add_argument("--uri", required=True, help="the router: mongodb://host:port")
    parser.add_argument("--database", help="watch one database")
    parser.add_argument("--collection", help="collections of it, with commas between them")
    parser.add_argument("--pipeline", help="stages after $changeStream, as a JSON array")
    parser.add_argument("--full-document", help="as the driver's full_document")
    parser.add_argument("--start-at", help="cluster time SECONDS,INCREMENT; default: now")
    parser.add_argument("--out", required=True, help="folder of the Parquet files")
    parser.add_argument("--checkpoint", required=True, help="folder of the query's checkpoint")
    parser.add_argument("--trigger", default="1 second", help="pause between micro-batches")
    return parser.parse_args()


def _options(args: argparse.Namespace) -> dict[str, str]:
    options = {
        "database": args.database,
        "collection": args.collection,
        "pipeline": args.pipeline,
        "fullDocument": args.full_document,
        "startAtOperationTime": args.start_at,
    }
    return {name: value for name, value in options.items() if value is not None}


if __name__ == "__main__":
    sys.exit(main())
