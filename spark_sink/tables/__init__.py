"""Delta tables: those to which batches are appended, and current tables, equal to collections.

The entrance is `current_table.CurrentTable`. Changes go through the modules in this order:

- Tasks give them the keys of their documents (`keyed_rows`), and sort them by `places` into files
  (`staged_changes`).
- The driver plans which files have these keys (`key_ranges`, from what `range_files` has written).
- Tasks merge them with the rows of these files (`merge_task`): `fold` makes the next version of a
  document, and `table_form` its columns.
- The driver commits the new files (`delta_log`) with the state of the table: `table_state` is what
  it says, and `state_files` where it is kept. `table_version` reads any version.

`frame_fold` applies changes to frames of Spark, for reads of an earlier time and for `job verify`.
"""
