"""Train iCaRL with flashback on five tasks of Fashion-MNIST, in under a minute: python examples/quickstart.py"""

import flashback as fb

benchmark = fb.load_benchmark("split-fashion-mini")
host = fb.build_host("icarl", benchmark, memory_size=200, epochs=5)
method = fb.Flashback(host, epochs=1, alpha=0.1)
result = fb.train(method)
for setting in ("class_incremental", "task_incremental"):
    metrics = result[setting]
    print(f"{setting}: {metrics['average_accuracy']:.1f} % accuracy, {metrics['forgetting']:.1f} forgotten")
