//! Reports stored as text in `reports/`. `BLESS=1 cargo test -p conformance --test virtual_gpu` rewrites them.

use std::path::Path;

/// Compares a report with the stored one, ignoring addresses and source line numbers.
pub(crate) fn is_kept(name: &str, report: &str) -> anyhow::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/virtual_gpu/reports");
    let file = folder.join(format!("{name}.txt"));
    let said = without_numbers(report);
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(&folder)?;
        return Ok(std::fs::write(file, said)?);
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    anyhow::ensure!(
        said == kept,
        "{} differs from the report; stored:\n{kept}\nreported:\n{said}",
        file.display()
    );
    Ok(())
}

/// Removes source line numbers, so that inserting a line above them changes nothing.
fn without_numbers(report: &str) -> String {
    let mut kept = String::new();
    for (at, line) in report.lines().enumerate() {
        let words = line.trim_start();
        let text = words.trim_start_matches(|char: char| char.is_ascii_digit());
        let line = match text.chars().next() {
            _ if at == 0 => line.to_owned(),
            Some('|' | '=') => format!("     {text}"),
            Some('-' | ':') => format!("    {text}"),
            _ if text.len() < words.len() => format!("  LL{text}"),
            _ => format!("  {words}"),
        };
        kept += &without_places(&without_addresses(&line));
        kept.push('\n');
    }
    kept
}

/// Removes the numbers from `file.rs:12:5` and `line 12`.
fn without_places(line: &str) -> String {
    let digits = |char: char| char.is_ascii_digit();
    let mut out = String::new();
    let mut rest = line;
    while let Some(at) = rest.find(digits) {
        let before = &rest[..at];
        out += before;
        rest = &rest[at..];
        let end = rest.find(|char| !digits(char)).unwrap_or(rest.len());
        let is_place = [".rs:", ".cu:", " line ", ":LL:"].iter().any(|mark| out.ends_with(mark));
        out += if is_place { "LL" } else { &rest[..end] };
        rest = &rest[end..];
    }
    out + rest
}

/// Removes the digits from `0x7f…`.
fn without_addresses(line: &str) -> String {
    let mut parts = line.split("0x");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out += "0x…";
        out += part.trim_start_matches(|char: char| char.is_ascii_hexdigit());
    }
    out
}
