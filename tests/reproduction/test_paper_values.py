"""Every number of Tables 1 to 10 of the paper, copied row by row, against `reproduction/paper-values.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

VALUES = yaml.safe_load((Path(__file__).parents[2] / "reproduction" / "paper-values.yaml").read_text())
Cells = dict[tuple[str, ...], str]  # benchmark, metric, host, arm and varied setting: the value as the tables print it

AA, FORGETTING = "average_accuracy", "forgetting"
COLUMNS = {
    "Table 1": [(name, AA) for name in ("split-cifar10", "split-cifar100", "split-tinyimagenet")],
    "Table 2": [(name, AA) for name in ("split-cifar10", "split-cifar100", "split-tinyimagenet")],
    "Table 4": [
        ("cifar100-b0-10", AA),
        ("cifar100-b50-10", "last_accuracy_images"),
        ("imagenet100-b0-10", AA),
        ("imagenet100-b50-10", "last_accuracy_images"),
    ],
    "Table 5": [(f"cifar100-b50-{step}", "average_incremental_accuracy_images") for step in (10, 5, 2)],
    "Table 6": [("split-cifar10", AA)],
    "Table 7": [("split-cifar10", AA)],
    "Table 8": [
        (name, metric)
        for name in ("split-cifar10", "split-cifar100", "split-tinyimagenet")
        for metric in (AA, FORGETTING)
    ],
    "Table 9": [("split-cifar100", AA), ("split-cifar100", FORGETTING)],
    "Table 10": [(name, "stability_plasticity_ratio") for name in ("split-cifar10", "split-cifar100")],
}
# "+" is the method with flashback, "gain" the number in brackets, * a quoted value, - no value.
PRINTED = {
    "Table 1": """
        icarl        70.21   49.82*  27.32
        icarl+       72.39   53.2    31.18
        icarl gain    2.18    3.38    3.86
        lwf-mc       43.14   16.22*  24.18
        lwf-mc+      45.88   21.13   25.58
        lwf-mc gain   2.74    4.91    1.4
        oewc         19.49*  15.79    7.58*
        oewc+        19.54   16.34    8.85
        oewc gain     0.05    0.55    1.27
        lucir        79.89   47.66   30.37
        lucir+       80.91   48.64   32.47
        lucir gain    1.02    0.98    2.10
        xder         63.16   59.14*  40.72
        xder+        65.38   58.02   41.81
        xder gain     2.64    0.45    1.09""",
    "Table 2": """
        icarl        90.02   83.99   68.28
        icarl+       91.33   86.77   69.80
        icarl gain    1.31    2.78    1.52
        lwf-mc       93.28   61.40   65.45
        lwf-mc+      96.79   64.59   67.21
        lwf-mc gain   3.51    3.19    1.76
        oewc         68.29   59.34   19.20*
        oewc+        70.85   62.35   21.01
        oewc gain     2.56    3.01    1.81
        lucir        96.61   86.88   69.20
        lucir+       96.56   86.98   69.69
        lucir gain   -0.05    0.10    0.49
        xder         92.86   88.89   75.16
        xder+        95.51   89.49   76.53
        xder gain     2.65    0.60    1.37""",
    "Table 4": """
        joint           -       -       81.50*  81.50*
        replay          41.01*  41.26*  41.00*  43.38*
        icarl           49.52*  52.04*  50.98*  53.69*
        bic             50.79*  49.19*  42.40*  49.9*
        wa              52.30*  55.85*  55.04*  56.64*
        podnet          -       -       45.40*  62.94*
        der-expansion   58.59*  61.94*  66.84*  71.10*
        dytox           57.76*  -       57.94*  -
        foster          62.54*  64.01*  70.14*  75.52*
        foster+         63.61   65.67   69.96   76.10
        beef            60.98*  65.24*  68.78*  70.98*
        beef-compress   61.45*  64.54*  71.12*  74.62*
        beef-compress+  62.82   69.30   71.96   79.82""",
    "Table 5": """
        icarl         57.12*  52.66*  48.22*
        icarl dev      0.50    0.89    0.76
        icarl+ ancl   61.22*  59.13*  -
        icarl+ ancl dev 0.88   0.68   -
        icarl-aanets  64.22*  60.26*  56.43*
        icarl-aanets dev 0.42  0.73    0.81
        icarl+        67.34   66.01   64.21
        icarl+ dev     0.20    0.48    0.28
        lucir         63.17*  60.14*  57.54*
        lucir dev      0.87    0.73    0.43
        lucir+ ancl   60.20*  60.04*  -
        lucir+ ancl dev 0.78   0.8    -
        lucir-aanets  66.74*  65.29*  63.50*
        lucir-aanets dev 0.37  0.43    0.61
        lucir+        68.18   67.23   64.05
        lucir+ dev     0.11    0.13    0.24""",
    "Table 6": """
        icarl         70.21
        icarl+ 10+50  72.39
        icarl+ 50+50  72.36
        icarl+ 10+10  69.88
        icarl+ 50+10  68.41
        lucir         79.89
        lucir+ 10+50  80.91
        lucir+ 50+50  79.92
        lucir+ 10+10  72.59
        lucir+ 50+10  69.15""",
    "Table 7": """
        icarl         70.21
        icarl+ 0.001  73.52
        icarl+ 0.1    69.57
        icarl+ 1.0    69.19
        lucir         79.89
        lucir+ 0.001  80.41
        lucir+ 0.1    79.53
        lucir+ 1.0    79.3""",
    "Table 8": """
        icarl m200    65.91  22.46  39.94  34.50  19.17  33.07
        icarl+ m200   66.77  21.47  41.28  28.04  19.97  29.8
        icarl m500    68.94  21.76  44.94  31.71  25.45  28.61
        icarl+ m500   69.08  20.12  48.19  24.51  26.42  26.26
        icarl m2000   -      19.07  -      27.47  32.57  21.61
        icarl+ m2000  -      17.27  -      23.07  33.83  19.52
        icarl m5120   78.09  14.98  57.1   20.65  33.18  19.78
        icarl+ m5120  78.20  14.96  57.37  18.31  35.16  18.68""",
    "Table 9": """
        icarl vit-small   76.28  12.97
        icarl+ vit-small  79.21   8.6
        icarl vit-tiny    65.18  16.18
        icarl+ vit-tiny   66.22  12.74""",
    "Table 10": """
        icarl    21.87  37.47
        icarl+   20.04  33.07
        lwf-mc   59.02  63.93
        lwf-mc+  55.36  61.21
        lucir    18.54  38.59
        lucir+   14.99  36.54
        oewc     48.37  96.04
        oewc+    40.14  91.42""",
}
# Left out of Tables 7, 8 and 9: cells that repeat Table 1 or Table 8 (alpha_p = 0.01, 2000 images, ResNet-18).


def printed(where: str) -> Cells:
    cells: Cells = {}
    columns = COLUMNS[where]
    for line in PRINTED[where].strip().splitlines():
        words = line.split()
        label, values = words[: -len(columns)], words[-len(columns) :]
        for column, value in zip(columns, values, strict=True):
            if value != "-":
                cells[(*column, *label)] = f"{float(value.rstrip('*')):.2f}{'*' * value.endswith('*')}"
    return cells


def varied(where: str, when: dict[str, Any]) -> list[str]:
    """The words of a row that say what is varied in a table."""
    if "Table 6" in where:
        return [f"{when['flashback.epochs']}+{when['flashback.second_epochs']}"]
    if "Table 7" in where:
        return [str(when["flashback.alpha"])]
    if "Table 8" in where:
        return [f"m{when['host.memory_size']}"]
    if "Table 9" in where:
        return ["-".join(when["host.net"].split("_")[:2]).removeprefix("timm:")]
    return ["ancl"] if "ANCL" in where else []


def kept(where: str) -> Cells:
    """The cells of the file as a table prints them."""
    cells: Cells = {}
    for table in VALUES["tables"]:
        if table["where"].split(",")[0] != where:
            continue
        for benchmark, hosts in table["cells"].items():
            for host, host_cells in hosts.items():
                for cell in host_cells if isinstance(host_cells, list) else [host_cells]:
                    extra = varied(table["where"], cell.get("when", {}))
                    extra_arms = [] if table["where"] in ("Table 6", "Table 7", "Table 5, ANCL") else extra
                    column, quoted = (benchmark, table["metric"]), cell.get("quoted")
                    arms = [
                        ("host", [host, *extra_arms], bool(quoted)),
                        ("flashback", [f"{host}+", *extra], quoted == "both"),
                    ]
                    for place, (arm, label, star) in enumerate(arms):
                        if arm in cell:
                            cells[(*column, *label)] = f"{cell[arm]:.2f}{'*' * star}"
                            if "deviation" in cell:
                                cells[(*column, *label, "dev")] = f"{cell['deviation'][place]:.2f}"
                    if "gain" in cell and where != "Table 4":  # there the gains are from the text
                        cells[(*column, host, "gain")] = f"{cell['gain']:.2f}"
    return cells


@pytest.mark.parametrize("where", PRINTED)
def test_every_number_is_as_printed(where: str) -> None:
    assert kept(where) == printed(where)


def test_no_table_is_missing() -> None:
    tables = {table["where"].split(",")[0] for table in VALUES["tables"]} | {VALUES["tests"]["where"]}
    assert tables == {f"Table {number}" for number in range(1, 11)} == {*PRINTED, "Table 3"}


def test_the_paired_tests_are_as_printed() -> None:
    rows = {name: (row["t"], row["p"]) for name, row in VALUES["tests"].items() if name != "where"}
    assert rows == {
        "split-cifar10": (4.83, 0.0009),
        "split-cifar100": (4.34, 0.001),
        "split-tinyimagenet": (5.74, 0.0002),
    }


def test_gains_and_runs_from_the_text() -> None:
    cells = {table["metric"]: table["cells"] for table in VALUES["tables"] if table["where"] == "Table 4"}
    last, images = cells[AA], cells["last_accuracy_images"]
    assert last["cifar100-b0-10"]["foster"]["gain"] == 1.07
    assert images["cifar100-b50-10"]["foster"]["gain"] == 1.66
    assert last["imagenet100-b0-10"]["foster"]["rerun"] == 68.96
    assert images["cifar100-b50-10"]["beef-compress"]["gain"] == 4.76
    assert images["imagenet100-b50-10"]["beef-compress"]["gain"] == 4.2
    first = next(table["cells"] for table in VALUES["tables"] if table["where"] == "Table 1")
    assert first["split-cifar100"]["xder"]["rerun"] == 57.57
