"""HTML from the templates of a room, which may include those here: style.css, the style of every page."""

from importlib.resources import files

OWN = "custom_autograd.rendering"


def render(room: str, template: str, **values: object) -> str:
    """Return a template of a room, filled in; every text in it is escaped."""
    import jinja2  # comes with torch, and only HTML needs it

    folders = [files(package) / "templates" for package in (room, OWN)]

    def load(name: str) -> str | None:
        found = [folder.joinpath(name) for folder in folders]
        return next((file.read_text(encoding="utf-8") for file in found if file.is_file()), None)

    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(load),
    )
    return environment.get_template(template).render(**values)
