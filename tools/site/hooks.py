"""Adapts the pages, which are written for GitHub, to MkDocs, and writes llms.txt.

- Links to files outside of docs/ lead to the repository.
- The content of list items is indented by four spaces, as Python-Markdown needs it. On GitHub it is the marker's width.
- Callouts, such as a quote that begins with [!WARNING], become admonitions.
- The words for the tests after a block's language, such as "sh background", are dropped.
- llms.txt lists all pages with their first sentence. Each page is also there as Markdown.
"""

import posixpath
import re
from pathlib import Path

REPOSITORY = "https://github.com/mcp-events/mcpevents/blob/main/"

FENCE = re.compile(r"^ *```")
ITEM = re.compile(r"^ *(?:[-*]|\d+\.) +(?=\S)")
CALLOUT = re.compile(r"^> \[!(NOTE|TIP|IMPORTANT|WARNING|CAUTION)\]$")
LINK = re.compile(r"(\]\()([^()\s]+)(\))")

summaries = {}  # by the path of the page


def on_page_markdown(markdown, page, config, files):
    summaries[page.file.src_uri] = summarize(markdown) or config["site_description"]
    return adapt(markdown, page.file.src_uri)


def on_post_build(config):
    site, docs = Path(config["site_dir"]), Path(config["docs_dir"])
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", ""]
    for path in order(config["nav"]):
        source = (docs / path).read_text()
        target = site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source)
        title = source.split("\n", 1)[0].lstrip("# ")
        lines.append(f"- [{title}]({config['site_url']}{path}): {summaries[path]}")
    (site / "llms.txt").write_text("\n".join(lines) + "\n")


def order(nav):
    """Yields the paths of the pages in the order of the navigation."""
    for entry in nav:
        if isinstance(entry, str):
            yield entry
        else:
            for section in entry.values():
                yield from order(section)


def summarize(markdown):
    """Returns the first sentence before the first section."""
    for paragraph in re.split(r"\n\s*\n", markdown.split("\n## ")[0]):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
        sentence = re.split(r"(?<=[.!])\s", text)[0]
        if sentence and not sentence.startswith(("#", "|", "!", "<", "`")):
            return sentence
    return ""


def adapt(markdown, source):
    out = []
    items = []  # the columns at which the content of the open list items begins
    fenced = False
    called = False  # the line before belongs to a callout
    parted = False  # the open list item has a second paragraph
    for line in markdown.split("\n"):
        if not line.strip():
            out.append("")
            called = False
            continue
        if not fenced:
            column = len(line) - len(line.lstrip(" "))
            while items and column < items[-1]:
                items.pop()
        depth, content = len(items), line[items[-1] if items else 0 :]
        item = None
        if FENCE.match(line):
            fenced = not fenced
            content = re.sub(r"^( *```\S*).*", r"\1", content)
        elif not fenced:
            content = LINK.sub(lambda m: link(m, source), content)
            callout = CALLOUT.match(content)
            if callout:
                content = "!!! " + callout[1].lower()
            elif called and content.startswith("> "):
                content = "    " + content[2:]
            called = bool(callout) or (called and content.startswith("    "))
            item = ITEM.match(content)
            if item:
                # A list that follows a paragraph directly needs an empty line before it, and so does the next item.
                if out and out[-1] and (parted or not listed):
                    out.append("")
                parted = False
                items.append((items[-1] if items else 0) + item.end())
            elif items and not out[-1]:
                parted = True
        listed = bool(items)
        out.append("    " * depth + content)
    return "\n".join(out)


def link(match, source):
    """Replaces a relative link to a file outside of docs/ by one to the repository."""
    path, hash_, anchor = match[2].partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return match[0]
    target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(source), path))
    if target.startswith("docs/"):
        return match[0]
    return match[1] + REPOSITORY + target + hash_ + anchor + match[3]
