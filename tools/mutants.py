"""Check that the fast tests are strong: break the code in one line at a time, and see that a test fails each time.

    python tools/mutants.py [NAME ...]

A mutant that no test notices survives, and the command exits with 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = ("src", "tests", "pyproject.toml", "README.md", "docs", "examples", "reproduction")

# name: (file, line as it is, line as it becomes, tests that should notice)
MUTANTS = {
    "icarl-task-weight": (
        "hosts/icarl.py", "weight * soft_binary_cross_entropy(", "soft_binary_cross_entropy(", "hosts/test_icarl.py",
    ),
    "icarl-stability-weight": (
        "hosts/icarl.py", "weight=len(self.task.before) / self.target_count()", "weight=1.0", "hosts/test_icarl.py",
    ),
    "der-alpha": (
        "hosts/der.py", 'Support(samples="memory", weight=self.settings.alpha)', 'Support(samples="memory")',
        "hosts/test_der.py",
    ),
    "derpp-draw": ("hosts/der.py", "second = step.draws[1]", "second = step.draws[0]", "hosts/test_der.py"),
    "xder-gamma": ("hosts/xder.py", "(gamma * truth / ", "(truth / ", "hosts/test_xder.py"),
    "foster-alignment": ("hosts/foster.py", "output.logits / self.weights", "output.logits", "hosts/test_foster.py"),
    "ewc-half": ("hosts/ewc.py", "self.settings.strength / 2", "self.settings.strength", "hosts/test_ewc.py"),
    "lucir-weight": ("hosts/lucir.py", "math.sqrt(growth)", "growth", "hosts/test_lucir.py"),
    "agem-projection": ("hosts/agem.py", "clamp(max=0)", "clamp(min=0)", "hosts/test_agem.py"),
    "fisher-square": ("knowledge/importance.py", "score, torch.square_", "score, torch.abs_", "knowledge"),
    "distillation-temperature": (
        "knowledge/distances.py", "F.log_softmax(student / temperature", "F.log_softmax(student", "knowledge",
    ),
    "stale-targets": (
        "knowledge/kinds.py", "(stamps.abs() == memory.stamps[rows]) & ", "", "knowledge test_plugin.py",
    ),
    "no-flashback": ("plugin.py", "        self.restore()\n", "", "test_plugin.py"),
    "alpha-schedule": ("plugin.py", '"rising": (epoch + 1) / epochs', '"rising": epoch / epochs', "test_plugin.py"),
    "phase1-schedule": ("plugin.py", 'phase1_schedule == "none"', 'phase1_schedule != "none"', "test_plugin.py"),
    "step-schedule": ("hosts/stages.py", "sum(epoch >= max(1,", "sum(epoch > max(1,", "training/test_schedules.py"),
    "cosine-schedule": (
        "hosts/stages.py", "math.pi * epoch / epochs", "math.pi * (epoch + 1) / epochs", "training/test_schedules.py",
    ),
    "reservoir": ("memory.py", "(uniforms * (n + 1))", "(uniforms * capacity)", "memory"),
    "herding": ("hosts/exemplars.py", "(step * mean - total)", "(mean - total)", "hosts/test_herding.py"),
    "quota": (
        "hosts/exemplars.py", "self.settings.capacity(seen) // seen", "-(-self.settings.capacity(seen) // seen)",
        "hosts/test_exemplars.py",
    ),
    "forgetting": ("metrics/accuracy.py", "lower[j:-1, j].max()", "lower[j:, j].max()", "metrics"),
    "forward-transfer": (
        "metrics/accuracy.py", "_known(untrained, 1, later + 1)", "_known(untrained, 0, later)", "metrics",
    ),
    "deviation": (
        "metrics/statistics.py", "return float(np.std(values, ddof=1))", "return float(np.std(values))", "metrics",
    ),
    "holm": ("metrics/statistics.py", "(len(values) - done)", "len(values)", "metrics"),
    "difference-sign": ("metrics/statistics.py", "right - left", "left - right", "metrics"),
    "resume-generator": (
        "training/trainer.py", 'self.host.generator.set_state(randomness["generator"])', "pass", "conformance",
    ),
    "resume-log": ("records/__init__.py", "file.truncate(min(size, file.tell()))", "pass", "records training"),
    "resume-optimiser": ("training/step.py", "return optimiser | counts |", "return counts |", "training"),
    "task-columns": (
        "training/evaluation.py", "(columns[scores[:, columns].argmax(dim=1)] == labels)",
        "(predicted[-1] == labels)", "training/test_evaluation.py",
    ),
    "seen-columns": (
        "training/evaluation.py", "seen = max(task.seen.stop for task in (host.task, *tasks))",
        "seen = host.benchmark.classes", "training/test_evaluation.py",
    ),
}  # fmt: skip


def survives(tree: Path, file: str, line: str, mutated: str, tests: str) -> bool:
    path = tree / "src/flashback" / file
    source = path.read_text(encoding="utf-8")
    if source.count(line) != 1:
        raise SystemExit(f"error: {file} must contain {line!r} once; bring tools/mutants.py up to date")
    path.write_text(source.replace(line, mutated), encoding="utf-8")
    paths = [str(tree / "tests" / test) for test in tests.split()]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", *paths]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    try:
        code = subprocess.run(command, cwd=tree, env=environment, capture_output=True, check=False).returncode
    finally:
        path.write_text(source, encoding="utf-8")
    return code != 1  # pytest: 1 means that tests failed, everything else that none did


def main() -> int:
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        for name in COPIED:
            source, target = ROOT / name, Path(folder) / name
            shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
        for name in sys.argv[1:] or MUTANTS:
            alive = survives(Path(folder), *MUTANTS[name])
            survivors += [name] * alive
            print(f"{'SURVIVED' if alive else 'caught'}  {name}", flush=True)
    print(f"{len(survivors)} survived" if survivors else "every mutant was caught")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
