//! What a person sees on a terminal: its lines, and their colors.

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anstyle::{Ansi256Color, Effects, RgbColor, Style};

use crate::terminal::{Size, TIMEOUT, Terminal, set_size};

/// How long the program must print nothing before a screen is considered complete.
const SILENCE: Duration = Duration::from_millis(20);

impl Terminal {
    /// Resizes the terminal, and notifies the program.
    pub(crate) fn resize(&mut self, size: Size) {
        self.screen.screen_mut().set_size(size.rows, size.columns);
        set_size(&self.keyboard, size);
    }

    /// Returns the lines of the screen, once the cursor is after one of the words in `ends`, `is_it` accepts them, and no more output
    /// arrives.
    #[track_caller]
    pub(crate) fn screen(&mut self, ends: &[&str], is_it: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let screen = self.screen.screen();
            let (row, column) = screen.cursor_position();
            let rows = screen.rows(0, screen.size().1.get()).map(|row| format!("{}\n", row.trim_end()));
            let lines: String = rows.collect();
            let line = screen.contents_between(row, 0, row, column);
            let is_complete = ends.iter().any(|end| line.ends_with(end)) && is_it(&lines);
            let left = deadline.saturating_duration_since(Instant::now());
            match self.read(if is_complete { SILENCE } else { left }) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) if is_complete => {
                    self.text.clear();
                    return lines;
                }
                Err(error) => panic!("no such screen, {error}:\n{lines}"),
            }
        }
    }

    /// Returns the screen's lines with their colors, as escape sequences.
    pub(crate) fn styled_screen(&self) -> String {
        let screen = self.screen.screen();
        let (rows, columns) = screen.size();
        let mut text = String::new();
        for row in 0..rows.get() {
            let (mut line, mut last) = (String::new(), Style::new());
            for cell in (0..columns.get()).filter_map(|column| screen.cell(row, column)) {
                let style = style_of(cell);
                if style != last {
                    line.push_str(&format!("{last:#}{style}"));
                    last = style;
                }
                line.push_str(if cell.has_contents() { cell.contents() } else { " " });
            }
            text.push_str(&format!("{}{last:#}\n", line.trim_end()));
        }
        text
    }
}

fn style_of(cell: &vt100::Cell) -> Style {
    let color = match cell.fgcolor() {
        vt100::Color::Default => None,
        vt100::Color::Idx(number) => Some(Ansi256Color(number).into()),
        vt100::Color::Rgb(red, green, blue) => Some(RgbColor(red, green, blue).into()),
    };
    let effects =
        [(cell.bold(), Effects::BOLD), (cell.dim(), Effects::DIMMED), (cell.underline(), Effects::UNDERLINE)];
    let effects = effects.into_iter().filter(|(has, _)| *has).fold(Effects::new(), |all, (_, one)| all | one);
    Style::new().fg_color(color).effects(effects)
}
