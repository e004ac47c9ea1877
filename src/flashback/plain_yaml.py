"""Read YAML from untrusted sources: plain values only, without aliases, duplicate keys or huge numbers."""

from typing import Any

import yaml

from flashback.errors import FlashbackError

LARGEST_NUMBER = 2**63 - 1  # the largest whole number that torch and numpy accept


class PlainLoader(yaml.SafeLoader):
    """A safe loader that also refuses aliases, duplicate keys and huge numbers."""

    aliases = False

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent) and not self.aliases:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(None, None, None, mark, "write out what the alias stands for")
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(None, None, None, key.start_mark, f"'{key.value}' is given twice")
            seen.add(key.value)
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value: int = super().construct_yaml_int(node)
        if abs(value) > LARGEST_NUMBER:
            raise yaml.MarkedYAMLError(None, None, None, node.start_mark, "the number is too large")
        return value


PlainLoader.add_constructor("tag:yaml.org,2002:int", PlainLoader.construct_yaml_int)


class AliasLoader(PlainLoader):
    """For files of the package itself, which share values through aliases."""

    aliases = True


def read_yaml(text: str, source: str, loader: type[PlainLoader] = PlainLoader) -> Any:
    """Parse YAML text; a FlashbackError names the source and the line of what is wrong."""
    try:
        return yaml.load(text, loader)  # a SafeLoader
    except Exception as error:  # PyYAML raises nearly every kind for values that do not fit their tag
        line, note = getattr(getattr(error, "problem_mark", None), "line", None), getattr(error, "note", None)
        where = f" in line {line + 1}" if line is not None else ""
        advice = f"; {note}" if note else ""
        raise FlashbackError(f"{source} is not valid YAML{where}{advice}") from None
