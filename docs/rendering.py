"""How the site shows formulas and docstrings, without a request to another host.

MkDocs loads this file as a hook: formulas become MathML, which browsers draw themselves. Griffe
loads it as an extension: docstrings, whose roles are those of Sphinx, become Markdown.
"""

import html
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
_BLOCK = re.compile(
    r"^( *)\.\. math:: (.*(?:\n(?:\1 {2,}\S.*|\s*$(?=\n\1 {2,}\S)))*)", re.MULTILINE
)
_FACT = re.compile(r"^(Range|Invariant[^:\n]*|Undefined[^:\n]*|Cost): ", re.MULTILINE)


def on_page_content(content: str, **_: Any) -> str:
    """Draw every formula of a page."""
    return _FORMULA.sub(_mathml, content)


def on_post_build(config: Any, **_: Any) -> None:
    """Links of ``llms.txt`` lead to the pages of the site."""
    index = Path(config["site_dir"]) / "llms.txt"
    if index.exists():
        index.write_text(index.read_text().replace(".md)", ".html)"))


def _mathml(match: re.Match[str]) -> str:
    formula = html.unescape(match[3]).strip()
    if match[2] == "[":
        return f'<div class="formula">{convert(formula, display="block")}</div>'
    return convert(formula, display="inline")


def markdown(text: str) -> str:
    """A docstring with Markdown for its roles and formulas, its facts as a list."""
    text = _BLOCK.sub(lambda m: f"{m[1]}$$\n{m[1]}{' '.join(m[2].split())}\n{m[1]}$$", text)
    text = re.sub(r":math:`([^`]+)`", r"$\1$", text)
    text = re.sub(r":(?:func|class|meth|mod|attr):`~?([^`]+)`", r"`\1`", text)
    text = re.sub(r"^( *)(\w+)::$", r"\1**\2:**", text, flags=re.MULTILINE)
    first = _FACT.search(text)
    if first:
        text = text[: first.start()] + _FACT.sub(r"- **\1:** ", text[first.start() :])
    return text


def shape(annotation: Any) -> Any:
    """An annotation with shapes such as "n *c" as text; Griffe reads them as products."""
    if isinstance(annotation, griffe.ExprBinOp) and annotation.operator == "*":
        return f'"{annotation.left} *{annotation.right}"'
    if isinstance(annotation, griffe.Expr):
        for name in (field.name for field in fields(annotation)):
            part = getattr(annotation, name)
            parts = [shape(one) for one in part] if isinstance(part, list) else shape(part)
            setattr(annotation, name, parts)
    return annotation


class Roles(griffe.Extension):
    """Convert every docstring before it is parsed, and the shapes in every signature."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Convert the annotations of a function."""
        for parameter in func.parameters:
            parameter.annotation = shape(parameter.annotation)
        func.returns = shape(func.returns)

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Convert the annotation of a property or field."""
        attr.annotation = shape(attr.annotation)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Replace the text; line numbers stay those of the source."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
