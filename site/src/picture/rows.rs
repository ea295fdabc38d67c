//! The figures in the lessons: rows of boxes with arrows between them, as described in `site/book/pictures.toml`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;
use svg::node::element::Group;

use chart::card::{
    Card, FONT, GREEN, INK, LARGE, MARGIN, ORANGE, PINK, SKY, SOFT, VERMILION, WIDTH, arrow, block, centered,
    rectangle, text,
};

/// The file that describes the figures.
const DESCRIBED: &str = "site/book/pictures.toml";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pictures {
    picture: Vec<Picture>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Picture {
    name: String,
    title: String,
    /// A row's length, in units.
    columns: f64,
    /// The quantity along the horizontal axis, such as time. Without a quantity, no axis is drawn below the rows.
    axis: Option<String>,
    row: Vec<Row>,
    #[serde(default)]
    arrow: Vec<Arrow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    label: String,
    #[serde(default)]
    boxes: Vec<Bar>,
}

/// A box from one column to another. A box without a color is dashed; it stands for waiting or for an empty slot.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bar {
    from: f64,
    to: f64,
    text: String,
    color: Option<Color>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Color {
    Sky,
    Orange,
    Green,
    Pink,
    Red,
}

/// An arrow from a position in one row to a position in another, each given as `[row, column]` and counted from 0.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arrow {
    from: (usize, f64),
    to: (usize, f64),
    #[serde(default)]
    text: String,
}

const LEFT: f64 = 260.0;
const TOP: f64 = 100.0;
const ROW: f64 = 78.0;
const HEIGHT: f64 = 44.0;

/// Draws all figures, by name.
///
/// # Errors
/// Fails if the file can't be read, or if something doesn't fit in its picture; the error contains the picture's name.
pub(super) fn draw(root: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let text = fs::read_to_string(root.join(DESCRIBED)).with_context(|| format!("can't read {DESCRIBED}"))?;
    let pictures: Pictures = toml::from_str(&text).context(DESCRIBED)?;
    let mut drawn = BTreeMap::new();
    for picture in &pictures.picture {
        picture.check().with_context(|| format!("{DESCRIBED}: {}", picture.name))?;
        let is_first = drawn.insert(picture.name.clone(), picture.draw()).is_none();
        ensure!(is_first, "{DESCRIBED}: two pictures are named {}", picture.name);
    }
    Ok(drawn)
}

impl Picture {
    /// Checks that everything fits.
    fn check(&self) -> anyhow::Result<()> {
        // On average, letters in Helvetica are half as wide as they are high; a slightly larger factor is safe.
        let width = |text: &str| 0.56 * LARGE * text.chars().count() as f64;
        for row in &self.row {
            ensure!(width(&row.label) < LEFT - MARGIN, "the label `{}` is too long", row.label);
            let mut last = 0.0;
            for one in &row.boxes {
                let Bar { from, to, text, .. } = one;
                ensure!(
                    last <= *from && from < to && *to <= self.columns,
                    "`{text}` is not from {last} to {}",
                    self.columns
                );
                ensure!(width(text) < (to - from) * self.unit(), "`{text}` is too long for its box");
                last = *to;
            }
        }
        for Arrow { from, to, .. } in &self.arrow {
            let is_inside =
                |(row, column): (usize, f64)| row < self.row.len() && (0.0..=self.columns).contains(&column);
            ensure!(
                is_inside(*from) && is_inside(*to),
                "an arrow from {from:?} to {to:?} leaves the picture"
            );
            ensure!(from.0 != to.0, "an arrow from {from:?} to {to:?} stays in its row");
        }
        Ok(())
    }

    fn unit(&self) -> f64 {
        (WIDTH - MARGIN - LEFT) / self.columns
    }

    fn x(&self, column: f64) -> f64 {
        LEFT + column * self.unit()
    }

    /// Returns the text for screen readers: the rows with their boxes.
    fn description(&self) -> String {
        let row = |row: &Row| {
            let boxes: Vec<&str> = row.boxes.iter().map(|one| one.text.as_str()).collect();
            format!("{}: {}.", row.label, boxes.join(", "))
        };
        self.row.iter().map(row).collect::<Vec<_>>().join(" ")
    }

    fn draw(&self) -> String {
        let bottom = TOP + ROW * self.row.len() as f64;
        let height = bottom + if self.axis.is_some() { 46.0 } else { 4.0 };
        let mut card = Card::new(&self.title, &self.description(), height).large();
        for (index, row) in self.row.iter().enumerate() {
            let top = TOP + ROW * index as f64;
            card = card
                .add(text(MARGIN, top + HEIGHT / 2.0 + 0.36 * LARGE, &row.label).set("font-weight", "bold"));
            for one in &row.boxes {
                card = card.add(self.boxed(one, top));
            }
        }
        for Arrow { from, to, text: word } in &self.arrow {
            let edge = |(row, column): (usize, f64), is_upper: bool| {
                let below = if is_upper { HEIGHT } else { 0.0 };
                (self.x(column), TOP + ROW * row as f64 + below)
            };
            let (start, end) = (edge(*from, from.0 < to.0), edge(*to, to.0 < from.0));
            card = card.add(arrow(start, end));
            if !word.is_empty() {
                let (x, y) = ((start.0 + end.0) / 2.0, (start.1 + end.1) / 2.0);
                let is_flat = (end.0 - start.0).abs() > 2.0 * (end.1 - start.1).abs();
                let word = match is_flat {
                    true => centered(x + 24.0, y - 12.0, word),
                    false => text(x + 10.0, y + 0.36 * FONT, word),
                };
                card = card.add(word.set("fill", SOFT).set("font-size", FONT));
            }
        }
        if let Some(axis) = &self.axis {
            card = card
                .add(arrow((LEFT, bottom), (WIDTH - MARGIN, bottom)))
                .add(text(LEFT, bottom + 28.0, axis).set("fill", SOFT));
        }
        card.svg()
    }

    fn boxed(&self, one: &Bar, top: f64) -> Group {
        let (left, right) = (self.x(one.from) + 1.0, self.x(one.to) - 1.0);
        if let Some(color) = one.color {
            return block((left, top), (right - left, HEIGHT), color.hex(), &one.text);
        }
        let frame = rectangle(left, top, right - left, HEIGHT).set("rx", 4).set("fill", "none");
        let word =
            centered((left + right) / 2.0, top + HEIGHT / 2.0 + 0.36 * LARGE, &one.text).set("fill", INK);
        Group::new().add(frame.set("stroke", SOFT).set("stroke-dasharray", "5 5")).add(word)
    }
}

impl Color {
    fn hex(self) -> &'static str {
        match self {
            Self::Sky => SKY,
            Self::Orange => ORANGE,
            Self::Green => GREEN,
            Self::Pink => PINK,
            Self::Red => VERMILION,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "name = \"a\"\ntitle = \"A\"\ncolumns = 10\n\
        [[row]]\nlabel = \"one\"\nboxes = [{ from = 0, to = 4, text = \"work\", color = \"sky\" }, { from = 4, to = 9, text = \"waits\" }]\n\
        [[row]]\nlabel = \"two\"\n[[arrow]]\nfrom = [0, 4]\nto = [1, 5]\n";

    fn problem(from: &str, to: &str) -> String {
        let picture: Picture = toml::from_str(&GOOD.replace(from, to)).unwrap();
        picture.check().map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn everything_fits_or_is_named() {
        assert_eq!(problem("", ""), "");
        assert!(problem("work", &"work ".repeat(20)).contains("too long for its box"));
        assert!(
            problem("label = \"one\"", &format!("label = \"{}\"", "one ".repeat(9))).contains("the label")
        );
        assert!(problem("from = 4", "from = 3").contains("`waits` is not from 4"));
        assert!(problem("to = 9", "to = 11").contains("`waits`"));
        assert!(problem("to = [1, 5]", "to = [2, 5]").contains("leaves the picture"));
        assert!(problem("to = [1, 5]", "to = [0, 5]").contains("stays in its row"));
    }

    #[test]
    fn a_screen_reader_reads_the_rows() {
        let picture: Picture = toml::from_str(GOOD).unwrap();
        assert_eq!(picture.description(), "one: work, waits. two: .");
        assert!(picture.draw().contains("work"));
    }
}
