"""Typed SQL over the payloads: what `thalia sql` and programs query."""


def _text(path: str, table: str = "events") -> str:
    return f"json_extract_string({table}.payload, '$.{path}')"


def _as(kind: str, path: str, table: str = "events") -> str:
    # A provider may report any number: one that does not fit must not spoil the whole view.
    return f"TRY_CAST({_text(path, table)} AS {kind})"


def _pairs(effect: str, columns: str) -> str:
    """Each intent beside its outcome, if there is one. `s` is the intent, `f` the outcome."""
    return f"""
SELECT {_text("session", "s")} AS session, s.seq, make_timestamp(s.ts_us) AS started,
       make_timestamp(f.ts_us) AS finished, s.call_id, {_as("INTEGER", "body.attempt", "s")} AS attempt, {columns}
FROM events s LEFT JOIN events f
  ON f.kind = 'effect_finished' AND f.call_id = s.call_id
 AND {_text("session", "f")} = {_text("session", "s")}
 AND {_text("body.attempt", "f")} = {_text("body.attempt", "s")}
WHERE s.kind = 'effect_started' AND {_text("body.effect.kind", "s")} = '{effect}'"""


_MODEL = f"""{_text("body.effect.model", "s")} AS model,
       {_text("body.outcome.kind", "f")} AS outcome, {_text("body.outcome.fault", "f")} AS fault,
       {_as("BIGINT", "body.outcome.usage.input", "f")} AS input_tokens,
       {_as("BIGINT", "body.outcome.usage.cached", "f")} AS cached_tokens,
       {_as("BIGINT", "body.outcome.usage.output", "f")} AS output_tokens,
       {_as("DOUBLE", "body.outcome.cost_usd", "f")} AS cost_usd,
       {_as("DOUBLE", "body.outcome.charged_usd", "f")} AS charged_usd"""

_TOOL = f"""{_text("body.effect.tool", "s")} AS tool, {_text("body.effect.arguments", "s")} AS arguments,
       {_text("body.effect.effect_class", "s")} AS effect_class, {_text("body.effect.allowed_by", "s")} AS allowed_by,
       {_text("body.outcome.kind", "f")} AS outcome, {_as("INTEGER", "body.outcome.exit_code", "f")} AS exit_code"""

VIEWS: tuple[str, ...] = (
    f"""CREATE OR REPLACE VIEW log AS
SELECT {_text("session")} AS session, seq, make_timestamp(ts_us) AS ts, kind, call_id,
       {_as("BIGINT", "epoch")} AS epoch, {_text("actor")} AS actor, json_extract(payload, '$.body') AS body
FROM events""",
    f"CREATE OR REPLACE VIEW model_calls AS {_pairs('call_model', _MODEL)}",
    f"CREATE OR REPLACE VIEW tool_runs AS {_pairs('run_tool', _TOOL)}",
    f"""CREATE OR REPLACE VIEW approvals AS
SELECT {_text("session")} AS session, seq, make_timestamp(ts_us) AS ts, kind, {_text("body.ask")} AS ask,
       {_text("body.binding")} AS binding, {_text("body.reason")} AS reason
FROM events WHERE kind IN ('approved', 'denied')""",
)
"""`DESCRIBE log` and so on show them. Long texts stand in blobs and read as {"$blob": digest}."""
