//! Lines, boxes and words as SVG text, with colours for light and dark.

use std::fmt::Write as _;

/// What lies over what: later ones cover earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Layer {
    Shade,
    Line,
    Bar,
    Arrow,
    Mark,
    Word,
}

/// Where a text is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A point, in pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
}

/// A point.
pub(crate) fn at(x: f64, y: f64) -> Point {
    Point { x, y }
}

/// The requests of how many processes have colours of their own.
pub(crate) const COLOURS: usize = 8;

/// A picture that grows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Canvas {
    shapes: Vec<(Layer, String)>,
}

impl Canvas {
    /// Adds one element. A `tip` is shown when one points at it, and read to those who cannot see.
    fn add(&mut self, layer: Layer, open: &str, inner: &str, name: &str, tip: &str) {
        let mut inner = inner.to_owned();
        if !tip.is_empty() {
            let _ = write!(inner, "<title>{}</title>", escaped(tip));
        }
        let shape = match inner.as_str() {
            "" => format!("<{name} {open}/>"),
            inner => format!("<{name} {open}>{inner}</{name}>"),
        };
        self.shapes.push((layer, shape));
    }

    pub(crate) fn line(&mut self, layer: Layer, from: Point, to: Point, class: &str, tip: &str) {
        let (x1, y1, x2, y2) = (number(from.x), number(from.y), number(to.x), number(to.y));
        let open = format!(r#"class="{class}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}""#);
        self.add(layer, &open, "", "line", tip);
    }

    pub(crate) fn rect(&mut self, layer: Layer, corner: Point, size: Point, class: &str, tip: &str) {
        let (x, y, w, h) = (number(corner.x), number(corner.y), number(size.x), number(size.y));
        let open = format!(r#"class="{class}" x="{x}" y="{y}" width="{w}" height="{h}""#);
        self.add(layer, &open, "", "rect", tip);
    }

    pub(crate) fn circle(&mut self, layer: Layer, centre: Point, radius: f64, class: &str, tip: &str) {
        let (x, y, r) = (number(centre.x), number(centre.y), number(radius));
        self.add(layer, &format!(r#"class="{class}" cx="{x}" cy="{y}" r="{r}""#), "", "circle", tip);
    }

    pub(crate) fn polygon(&mut self, layer: Layer, points: &[Point], class: &str) {
        let points: Vec<_> = points.iter().map(|p| format!("{},{}", number(p.x), number(p.y))).collect();
        let open = format!(r#"class="{class}" points="{}""#, points.join(" "));
        self.add(layer, &open, "", "polygon", "");
    }

    pub(crate) fn curve(&mut self, from: Point, bend: Point, to: Point, class: &str, tip: &str) {
        let p = |p: Point| format!("{} {}", number(p.x), number(p.y));
        let open = format!(r#"class="{class}" d="M{} Q{} {}""#, p(from), p(bend), p(to));
        self.add(Layer::Arrow, &open, "", "path", tip);
    }

    pub(crate) fn text(&mut self, place: Point, anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => r#" text-anchor="middle""#,
            Anchor::End => r#" text-anchor="end""#,
        };
        let open = format!(r#"class="{class}" x="{}" y="{}"{anchor}"#, number(place.x), number(place.y));
        self.add(Layer::Word, &open, &escaped(text), "text", "");
    }

    /// A head at the end of an arrow.
    pub(crate) fn head(&mut self, from: Point, to: Point, class: &str) {
        let (dx, dy) = (to.x - from.x, to.y - from.y);
        let length = dx.hypot(dy).max(0.1);
        let (ux, uy) = (dx / length, dy / length);
        let back = at(to.x - 8.0 * ux, to.y - 8.0 * uy);
        let side = |s: f64| at(back.x - s * uy, back.y + s * ux);
        self.polygon(Layer::Arrow, &[to, side(3.2), side(-3.2)], class);
    }

    /// A cross where something ends.
    pub(crate) fn cross(&mut self, centre: Point, half: f64, class: &str, tip: &str) {
        for sign in [1.0, -1.0] {
            let from = at(centre.x - half, centre.y - sign * half);
            let to = at(centre.x + half, centre.y + sign * half);
            self.line(Layer::Mark, from, to, class, tip);
        }
    }

    /// The whole picture. `title` and `description` are for those who cannot see it.
    pub(crate) fn finish(mut self, size: Point, title: &str, description: &str) -> String {
        self.shapes.sort_by_key(|(layer, _)| *layer);
        let (w, h) = (number(size.x), number(size.y));
        let mut svg = format!(
            concat!(
                r#"<svg xmlns="http://www.w3.org/2000/svg" class="quorate" role="img" "#,
                r#"width="{w}" height="{h}" viewBox="0 0 {w} {h}">"#,
                "\n<title>{title}</title>\n<desc>{description}</desc>\n<style>{style}</style>\n",
                r#"<defs><pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse">"#,
                r#"<path class="ink" d="M0 5L5 0"/></pattern></defs>"#,
                "\n<rect class=\"paper\" width=\"{w}\" height=\"{h}\"/>\n"
            ),
            w = w,
            h = h,
            title = escaped(title),
            description = escaped(description),
            style = style(),
        );
        for (_, shape) in self.shapes {
            svg.push_str(&shape);
            svg.push('\n');
        }
        svg.push_str("</svg>\n");
        svg
    }
}

/// The colours of one ground: paper, ink, faint lines, faint words, shade, alarm, then one a process.
type Palette = [&'static str; 6 + COLOURS];

const LIGHT: Palette = [
    "#ffffff", "#1f2328", "#c3cad2", "#59636e", "#fbeecb", "#cf222e", // ground
    "#0969da", "#b35900", "#1a7f37", "#8250df", "#0b7a75", "#b0307a", "#7a5a1e", "#57606a",
];
const DARK: Palette = [
    "#0d1117", "#e6edf3", "#3d4550", "#9aa4ae", "#3a2f12", "#ff6b62", // ground
    "#6cb6ff", "#f0a35e", "#57c16a", "#b99cff", "#39c5bb", "#f47fb8", "#d4b06a", "#aab4be",
];

fn style() -> String {
    let mut style = String::from(concat!(
        "\n.quorate text{font:11px ui-sans-serif,system-ui,'DejaVu Sans',sans-serif}",
        "\n.quorate text.title{font-size:17px;font-weight:600}.quorate text.name{font-size:13px;font-weight:600}",
        "\n.quorate text.word,.quorate text.number,.quorate text.faintword",
        "{paint-order:stroke;stroke-width:4px;stroke-linejoin:round}",
        "\n.quorate text.number{font-size:10px;font-weight:600}.quorate text.small{font-size:10px}",
        "\n.quorate .arrow{stroke-width:1.4;fill:none}.quorate .double{stroke-dasharray:5 3}",
        "\n.quorate .under{stroke-dasharray:1.5 3}.quorate .life{stroke-width:1.2}",
        "\n.quorate .down{stroke-dasharray:2 5}.quorate .wait{stroke-width:2;stroke-dasharray:1.5 3.5}",
        "\n.quorate .cross{stroke-width:2}.quorate .violated{stroke-width:1.5}",
        "\n.quorate .hatched{fill:url(#hatch)}.quorate .ink{stroke-width:1}",
    ));
    style.push_str(&colours(&LIGHT));
    let _ = write!(style, "\n@media (prefers-color-scheme:dark){{{}\n}}\n", colours(&DARK));
    style
}

fn colours(palette: &Palette) -> String {
    let [paper, ink, line, faint, shade, alarm, processes @ ..] = palette;
    let mut css = format!(
        concat!(
            "\n.quorate .paper{{fill:{paper}}}.quorate text{{fill:{ink}}}.quorate text.faint,",
            ".quorate text.faintword{{fill:{faint}}}",
            "\n.quorate text.word,.quorate text.number,.quorate text.faintword{{stroke:{paper}}}",
            "\n.quorate .ink,.quorate .life,.quorate .hatched{{stroke:{ink}}}.quorate .full{{fill:{ink}}}",
            "\n.quorate .rule{{stroke:{line}}}.quorate .shade{{fill:{shade}}}.quorate .open{{fill:{paper}}}",
            "\n.quorate .alarm{{stroke:{alarm}}}.quorate text.alarm{{fill:{alarm};stroke:none}}",
            ".quorate .alarmfull{{fill:{alarm}}}",
        ),
        paper = paper,
        ink = ink,
        line = line,
        faint = faint,
        shade = shade,
        alarm = alarm,
    );
    for (at, colour) in processes.iter().enumerate() {
        let _ = write!(css, "\n.quorate .s{at}{{stroke:{colour}}}.quorate .f{at}{{fill:{colour}}}");
    }
    css
}

/// A number of pixels, to a tenth, without a needless point.
fn number(value: f64) -> String {
    let tenths = (value * 10.0).round() as i64;
    let sign = if tenths < 0 { "-" } else { "" };
    match (tenths.abs() / 10, tenths.abs() % 10) {
        (whole, 0) => format!("{sign}{whole}"),
        (whole, tenth) => format!("{sign}{whole}.{tenth}"),
    }
}

/// Text that is safe within XML. Characters that XML forbids become a replacement mark.
pub(crate) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\n' | '\t' => safe.push(' '),
            odd if odd.is_control() || matches!(odd, '\u{fffe}' | '\u{ffff}') => safe.push('\u{fffd}'),
            letter => safe.push(letter),
        }
    }
    safe
}

/// How wide a text is at 11 px, at most, in pixels: measured on a wide font, so that labels which do not
/// overlap here do not overlap in a narrower one.
pub(crate) fn text_width(text: &str) -> f64 {
    let width = |letter: char| match letter {
        'i' | 'j' | 'l' | '.' | ',' | ':' | '|' | '\'' | ' ' => 3.8,
        'f' | 't' | 'r' | '(' | ')' | 'I' | '-' => 4.6,
        'm' | 'w' | 'M' | 'W' | 'Q' | 'O' | '@' => 10.0,
        'A'..='Z' | '#' | '+' | '=' | '<' | '>' => 8.2,
        letter if letter.is_ascii() => 7.0,
        _ => 11.0,
    };
    text.chars().map(width).sum()
}
