"""A task of Airflow 3 that reports on orders each hour; put orders_report.py beside it."""

from datetime import UTC, datetime

from airflow.sdk import Variable, dag, task
from orders_report import report

START = datetime(2026, 1, 1, tzinfo=UTC)


@dag(schedule="@hourly", start_date=START, catchup=False)  # type: ignore[untyped-decorator]
def orders() -> None:
    """Wait and query in one task: Airflow runs it again if the job is late."""

    @task(retries=3)  # type: ignore[untyped-decorator]
    def hourly() -> str:
        return report(Variable.get("orders_out"), uri=Variable.get("orders_uri"))

    hourly()


orders()
