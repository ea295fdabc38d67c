//! Planted mistakes: wrong answers that a check must catch, with words that help.
//!
//! `tests/mistakes/init/devices/off_by_one.rs` is the file of the exercise `init/devices` with the mistake in it. It
//! starts with what is wrong, the check that must fail, and words that its message must have:
//! ```text
//! // mistake: GPUs are counted from 1
//! // fails: devices::stream_i_is_on_gpu_i
//! // says: stream 0 of 1 is on GPU 1
//! ```

use std::fs;
use std::path::Path;

use anyhow::{Context, bail, ensure};

use crate::starter::read_folder;

/// One planted mistake.
#[derive(Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Id of its exercise.
    pub exercise: String,
    /// Name of its file.
    pub name: String,
    /// What is wrong in it.
    pub what: String,
    /// The check that must fail.
    pub fails: String,
    /// What the check's message must say.
    pub says: Vec<String>,
    /// The whole source.
    pub source: String,
}

impl Mistake {
    /// Where it lies.
    pub fn path(&self) -> String {
        format!("tests/mistakes/{}/{}.rs", self.exercise, self.name)
    }
}

/// Reads all of them.
///
/// # Errors
/// There are none, or one isn't as it should be: with its path.
pub fn read(root: &Path) -> anyhow::Result<Vec<Mistake>> {
    let folder = root.join("tests/mistakes");
    fs::metadata(&folder).with_context(|| format!("no mistakes: can't read {}", folder.display()))?;
    let mut mistakes = Vec::new();
    for (path, source) in read_folder(&folder)? {
        let mistake = parse(&path, source).with_context(|| format!("tests/mistakes/{}", path.display()))?;
        mistakes.push(mistake);
    }
    ensure!(!mistakes.is_empty(), "{} holds no mistake", folder.display());
    Ok(mistakes)
}

fn parse(path: &Path, source: String) -> anyhow::Result<Mistake> {
    let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
    let [module, exercise, file] = parts[..] else { bail!("it must lie in MODULE/EXERCISE/") };
    let name = file.strip_suffix(".rs").context("it must be a .rs file")?;
    let (mut mistake, mut fails, mut says) = (None, None, Vec::new());
    for line in source.lines().take_while(|line| line.starts_with("//")) {
        let Some((key, value)) = line[2..].split_once(':') else { bail!("`{line}` has no `key: value`") };
        let value = value.trim().to_owned();
        ensure!(!value.is_empty(), "`{line}` says nothing");
        match key.trim() {
            "mistake" => mistake = Some(value),
            "fails" => fails = Some(value),
            "says" => says.push(value),
            other => bail!("`{other}` is no key; there are mistake, fails, says"),
        }
    }
    let what = mistake.context("its head has no `// mistake: what is wrong`")?;
    let fails = fails.context("its head has no `// fails: the check that must fail`")?;
    ensure!(!says.is_empty(), "its head has no `// says: words of the check's message`");
    Ok(Mistake { exercise: format!("{module}/{exercise}"), name: name.to_owned(), what, fails, says, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        "// mistake: it's wrong\n// fails: devices::it_works\n// says: a: b\n// says: c\n\nfn x() {}\n";

    #[test]
    fn a_head_gives_the_check_and_its_words() {
        let mistake = parse(Path::new("init/devices/wrong.rs"), GOOD.to_owned()).unwrap();
        assert_eq!((mistake.exercise.as_str(), mistake.name.as_str()), ("init/devices", "wrong"));
        assert_eq!(
            (mistake.fails.as_str(), mistake.says),
            ("devices::it_works", vec!["a: b".into(), "c".into()])
        );
    }

    #[test]
    fn a_missing_or_strange_line_is_an_error() {
        for (from, to, words) in [
            ("// mistake: it's wrong\n", "", "no `// mistake"),
            ("// fails: devices::it_works\n", "", "no `// fails"),
            ("// says: a: b\n// says: c\n", "", "no `// says"),
            ("// fails", "// fail", "`fail` is no key"),
            ("says: c", "says:", "says nothing"),
        ] {
            let error = parse(Path::new("a/b/c.rs"), GOOD.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert!(parse(Path::new("b/c.rs"), GOOD.to_owned()).is_err());
    }
}
