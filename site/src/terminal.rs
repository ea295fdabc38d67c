//! Draws what a terminal shows.

use anstyle_svg::{Term, WIN10_CONSOLE};

/// Draws text with ANSI escape sequences as an SVG that is at least `width` pixels wide.
pub(crate) fn svg(text: &str, width: usize) -> String {
    with_view_box(&Term::new().palette(WIN10_CONSOLE).min_width_px(width).render_svg(text))
}

/// Adds a view box with the picture's size, because some browsers can't enlarge the picture without it.
fn with_view_box(svg: &str) -> String {
    let of =
        |name: &str| svg.split_once(&format!(" {name}=\"")).and_then(|(_, rest)| rest.split_once("px\""));
    match (of("width"), of("height")) {
        (Some((width, _)), Some((height, _))) => {
            svg.replacen("<svg ", &format!("<svg viewBox=\"0 0 {width} {height}\" "), 1)
        }
        _ => svg.to_owned(),
    }
}
