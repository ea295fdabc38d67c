//! The style that all pictures share: a white card with dark text, readable on light and on dark pages.

use svg::Document;
use svg::node::Node;
use svg::node::element::{Description, Group, Line, Polygon, Rectangle, Text, Title};

/// The width of a card, in units of its view box.
pub const WIDTH: f64 = 1200.0;
/// The margin left free at the edges.
pub const MARGIN: f64 = 40.0;
/// The font size: 15 pixels where the card is 1000 pixels wide.
pub const FONT: f64 = 18.0;

/// The font size in a picture that fills a slide: 20 pixels where the card is 560 pixels high.
pub const LARGE: f64 = 22.0;

/// The color of text and outlines.
pub const INK: &str = "#1a1a1a";
/// The color of secondary text.
pub const SOFT: &str = "#555555";
/// The color of lines behind the data.
pub const FAINT: &str = "#d9d9d9";

/// The first color of Okabe and Ito's palette, whose colors color-blind readers can distinguish, even in print.
pub const BLUE: &str = "#0072b2";
/// A color of Okabe and Ito's palette.
pub const SKY: &str = "#56b4e9";
/// A color of Okabe and Ito's palette.
pub const ORANGE: &str = "#e69f00";
/// A color of Okabe and Ito's palette.
pub const GREEN: &str = "#009e73";
/// A color of Okabe and Ito's palette.
pub const VERMILION: &str = "#d55e00";
/// A color of Okabe and Ito's palette.
pub const PINK: &str = "#cc79a7";

/// A picture under construction.
pub struct Card(Document);

impl Card {
    /// Creates an empty card. Screen readers read the description.
    pub fn new(title: &str, description: &str, height: f64) -> Self {
        let edge = rectangle(1.0, 1.0, WIDTH - 2.0, height - 2.0);
        Self(
            Document::new()
                .set("viewBox", (0, 0, WIDTH, height))
                .set("role", "img")
                .set("font-family", "Helvetica, Arial, sans-serif")
                .set("font-size", FONT)
                .set("fill", INK)
                .add(Title::new(title))
                .add(Description::new().add(svg::node::Text::new(description)))
                .add(edge.set("rx", 16).set("fill", "#ffffff").set("stroke", FAINT).set("stroke-width", 2))
                .add(text(MARGIN, 58.0, title).set("font-size", 30).set("font-weight", "bold")),
        )
    }

    /// Adds an element.
    #[expect(clippy::should_implement_trait, reason = "the svg crate's method is called add, too")]
    pub fn add(self, node: impl Into<Box<dyn Node>>) -> Self {
        Self(self.0.add(node))
    }

    /// Sets the font size to [`LARGE`].
    pub fn large(self) -> Self {
        Self(self.0.set("font-size", LARGE))
    }

    /// Returns the picture as the text of an SVG file.
    pub fn svg(self) -> String {
        self.0.to_string() + "\n"
    }
}

/// Returns text that begins at (`x`, `y`), where `y` is its baseline.
pub fn text(x: f64, y: f64, content: impl Into<String>) -> Text {
    Text::new(content).set("x", round(x)).set("y", round(y))
}

/// Returns text centered on `x`, with its baseline at `y`.
pub fn centered(x: f64, y: f64, content: impl Into<String>) -> Text {
    text(x, y, content).set("text-anchor", "middle")
}

/// Returns text that ends at (`x`, `y`), where `y` is its baseline.
pub fn ending(x: f64, y: f64, content: impl Into<String>) -> Text {
    text(x, y, content).set("text-anchor", "end")
}

/// Returns a rectangle whose upper left corner is at (`x`, `y`).
pub fn rectangle(x: f64, y: f64, width: f64, height: f64) -> Rectangle {
    Rectangle::new()
        .set("x", round(x))
        .set("y", round(y))
        .set("width", round(width))
        .set("height", round(height))
}

/// Returns a filled rectangle with a word in it. The word's color is readable on the fill.
pub fn block(at: (f64, f64), size: (f64, f64), fill: &str, word: &str) -> Group {
    let frame = rectangle(at.0, at.1, size.0, size.1).set("rx", 4).set("fill", fill).set("stroke", INK);
    let word = centered(at.0 + size.0 / 2.0, at.1 + size.1 / 2.0 + 0.36 * FONT, word);
    Group::new().add(frame).add(word.set("fill", ink_on(fill)))
}

/// Returns a straight line.
pub fn line(from: (f64, f64), to: (f64, f64)) -> Line {
    Line::new()
        .set("x1", round(from.0))
        .set("y1", round(from.1))
        .set("x2", round(to.0))
        .set("y2", round(to.1))
}

/// Returns an arrow.
pub fn arrow(from: (f64, f64), to: (f64, f64)) -> Group {
    let length = (to.0 - from.0).hypot(to.1 - from.1);
    let (along_x, along_y) = ((to.0 - from.0) / length, (to.1 - from.1) / length);
    let neck = (to.0 - 12.0 * along_x, to.1 - 12.0 * along_y);
    let side = |way: f64| (neck.0 - way * 5.5 * along_y, neck.1 + way * 5.5 * along_x);
    Group::new()
        .add(line(from, neck).set("stroke", INK).set("stroke-width", 2))
        .add(Polygon::new().set("points", points(&[to, side(1.0), side(-1.0)])))
}

/// Formats positions the way polygons and polylines expect them.
pub fn points(places: &[(f64, f64)]) -> String {
    let places: Vec<String> = places.iter().map(|(x, y)| format!("{:.2},{:.2}", x, y)).collect();
    places.join(" ")
}

/// Rounds to two decimals, because more digits would only add noise to the file.
pub fn round(value: f64) -> f64 {
    (100.0 * value).round() / 100.0
}

/// Returns black or white, whichever is more readable on the color.
pub fn ink_on(fill: &str) -> &'static str {
    if contrast(fill, "#ffffff") >= contrast(fill, INK) { "#ffffff" } else { INK }
}

/// Returns the contrast between two colors `#rrggbb`, from 1 to 21, as defined in WCAG 2.1.
pub fn contrast(one: &str, other: &str) -> f64 {
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

/// Returns the relative luminance of a color `#rrggbb`, as defined in WCAG 2.1.
fn luminance(color: &str) -> f64 {
    let channel = |at: usize| {
        let value = color.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let value = f64::from(value.unwrap_or_default()) / 255.0;
        if value <= 0.03928 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    };
    0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contrast_matches_the_definition() {
        assert!((contrast("#000000", "#ffffff") - 21.0).abs() < 1e-9);
        assert!((contrast("#767676", "#ffffff") - 4.54).abs() < 0.01);
    }

    #[test]
    fn text_is_read_on_every_color() {
        for fill in [BLUE, SKY, ORANGE, GREEN, PINK, VERMILION] {
            assert!(contrast(fill, ink_on(fill)) >= 4.5, "{fill}: {}", contrast(fill, ink_on(fill)));
        }
        for ink in [INK, SOFT] {
            assert!(contrast(ink, "#ffffff") >= 4.5, "{ink}");
        }
    }

    #[test]
    fn a_card_has_a_title_and_escapes_its_text() {
        let svg = Card::new("a & b", "1 < 2", 10.0).add(text(1.0 / 3.0, 2.0, "x > y")).svg();
        assert!(svg.contains("<title>") && svg.contains("a &amp; b") && svg.contains("1 &lt; 2"), "{svg}");
        assert!(svg.contains(r#"role="img""#) && svg.contains(r#"x="0.33""#), "{svg}");
    }
}
