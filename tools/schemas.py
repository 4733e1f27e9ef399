"""Write JSON Schemas: of configurations, for completion of YAML in editors, and of what --format json prints.

`make docs` runs it.
"""

import json
from pathlib import Path

from collbench.config.models import Config
from collbench.report.machine_format import COMPARISONS, json_schema

ROOT = Path(__file__).resolve().parents[1]
SCHEMAS = {
    "configs/schema.json": Config.model_json_schema,
    "docs/report-schema.json": json_schema,
    "docs/comparison-schema.json": lambda: json_schema(COMPARISONS),
}


def main() -> None:
    for name, schema in SCHEMAS.items():
        (ROOT / name).write_text(json.dumps(schema(), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
