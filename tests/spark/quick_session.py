"""Spark settings that shorten short-lived tests."""

QUICK = {
    "spark.driver.extraJavaOptions": "-Xss16m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "600m",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.default.parallelism": "1",
}
