//! Known wrong answers that a check must catch, with a message that helps.
//!
//! `tests/mistakes/init/devices/off_by_one.patch` makes the solution of the exercise `init/devices` wrong. Its first
//! lines describe the mistake, name the check that must fail, and list words that the check's message must contain. A
//! unified diff follows, so `git apply` accepts the file too:
//! ```text
//! mistake: all GPUs are refused, because of `<` instead of `<=`
//! fails: devices::all_gpus_can_be_opened
//! says: GPUs were asked for
//! --- a/solutions/01_init/src/devices.rs
//! +++ b/solutions/01_init/src/devices.rs
//! @@ -19,5 +19,5 @@
//! ```

use std::fs;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use diffy::Patch;

use crate::answers::{Change, changes};
use crate::starter::read_folder;

/// One mistake.
#[derive(Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The id of its exercise.
    pub exercise: String,
    /// The name of its file.
    pub name: String,
    /// A description of what is wrong.
    pub what: String,
    /// The check that must fail.
    pub fails: String,
    /// The words that the check's message must contain.
    pub says: Vec<String>,
    /// A unified diff against the solution.
    pub diff: String,
}

impl Mistake {
    /// Returns the path of its file, from the root of the course.
    pub fn path(&self) -> String {
        format!("tests/mistakes/{}/{}.patch", self.exercise, self.name)
    }

    /// Returns the path of the file that its diff changes, from the root of the course.
    ///
    /// # Errors
    /// If the diff can't be read or names no file.
    pub fn changed_file(&self) -> anyhow::Result<String> {
        let file = self.patch()?.original().and_then(|name| name.strip_prefix("a/")).map(str::to_owned);
        file.with_context(|| format!("{} has no line `--- a/FILE`", self.path()))
    }

    /// Returns the solution with the mistake applied.
    ///
    /// # Errors
    /// If the diff can't be read, or doesn't apply to this solution.
    pub fn apply(&self, solution: &str) -> anyhow::Result<String> {
        let applied = diffy::apply(solution, &self.patch()?);
        applied.with_context(|| format!("{} doesn't apply to {}", self.path(), self.exercise))
    }

    /// Returns its diff, line by line.
    ///
    /// # Errors
    /// If the diff can't be read.
    pub fn changes(&self) -> anyhow::Result<Vec<(Change, String)>> {
        Ok(changes(&self.patch()?))
    }

    /// Returns the text of its file.
    pub fn text(&self) -> String {
        let says: String = self.says.iter().map(|says| format!("says: {says}\n")).collect();
        format!("mistake: {}\nfails: {}\n{says}{}", self.what, self.fails, self.diff)
    }

    fn patch(&self) -> anyhow::Result<Patch<'_, str>> {
        Patch::from_str(&self.diff).with_context(|| format!("the diff of {} can't be read", self.path()))
    }
}

/// Reads all mistakes.
///
/// # Errors
/// If there are none, or if one is malformed; the error names its path.
pub fn read(root: &Path) -> anyhow::Result<Vec<Mistake>> {
    let folder = root.join("tests/mistakes");
    fs::metadata(&folder).with_context(|| format!("no mistakes: can't read {}", folder.display()))?;
    let mut mistakes = Vec::new();
    for (path, text) in read_folder(&folder)? {
        let mistake = parse(&path, &text).with_context(|| format!("tests/mistakes/{}", path.display()))?;
        mistakes.push(mistake);
    }
    ensure!(!mistakes.is_empty(), "{} contains no mistake", folder.display());
    Ok(mistakes)
}

fn parse(path: &Path, text: &str) -> anyhow::Result<Mistake> {
    let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
    let [module, exercise, file] = parts[..] else { bail!("it must be in MODULE/EXERCISE/") };
    let name = file.strip_suffix(".patch").context("it must be a .patch file")?;
    let (mut mistake, mut fails, mut says) = (None, None, Vec::new());
    let mut rest = text;
    while let Some((line, after)) = rest.split_once('\n').filter(|(line, _)| !line.starts_with("--- ")) {
        let (key, value) = line.split_once(':').with_context(|| format!("`{line}` has no `key: value`"))?;
        let value = value.trim().to_owned();
        ensure!(!value.is_empty(), "`{line}` has no value");
        match key {
            "mistake" => mistake = Some(value),
            "fails" => fails = Some(value),
            "says" => says.push(value),
            other => bail!("`{other}` is not a key; the keys are mistake, fails, and says"),
        }
        rest = after;
    }
    let what = mistake.context("its head has no `mistake: what is wrong`")?;
    let fails = fails.context("its head has no `fails: the check that must fail`")?;
    ensure!(!says.is_empty(), "its head has no `says: words of the check's message`");
    let exercise = format!("{module}/{exercise}");
    let made = Mistake { exercise, name: name.to_owned(), what, fails, says, diff: rest.to_owned() };
    ensure!(!made.patch()?.hunks().is_empty(), "it has no diff after its head");
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "mistake: it's wrong\nfails: devices::it_works\nsays: a: b\nsays: c\n";
    const DIFF: &str =
        "--- a/solutions/x.rs\n+++ b/solutions/x.rs\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n";

    fn good() -> Mistake {
        parse(Path::new("init/devices/wrong.patch"), &format!("{HEAD}{DIFF}")).unwrap()
    }

    #[test]
    fn a_head_names_the_check_and_its_words() {
        let mistake = good();
        assert_eq!((mistake.exercise.as_str(), mistake.name.as_str()), ("init/devices", "wrong"));
        assert_eq!(
            (mistake.fails.as_str(), &mistake.says[..]),
            ("devices::it_works", &["a: b".into(), "c".into()][..])
        );
        assert_eq!(mistake.changed_file().unwrap(), "solutions/x.rs");
        assert_eq!(mistake.text(), format!("{HEAD}{DIFF}"));
    }

    #[test]
    fn a_diff_applies_where_its_lines_have_moved_and_nowhere_else() {
        assert_eq!(good().apply("one\ntwo\nthree\n").unwrap(), "one\n2\nthree\n");
        assert_eq!(good().apply("zero\n\none\ntwo\nthree\n").unwrap(), "zero\n\none\n2\nthree\n");
        let error = good().apply("one\nTWO\nthree\n").unwrap_err().to_string();
        assert_eq!(error, "tests/mistakes/init/devices/wrong.patch doesn't apply to init/devices");
    }

    #[test]
    fn its_changes_are_those_of_the_diff() {
        let expected =
            [(Change::Same, "one"), (Change::Removed, "two"), (Change::Added, "2"), (Change::Same, "three")];
        assert_eq!(good().changes().unwrap(), expected.map(|(change, line)| (change, line.to_owned())));
    }

    #[test]
    fn a_missing_or_unknown_line_is_an_error() {
        for (from, to, words) in [
            ("mistake: it's wrong\n", "", "no `mistake"),
            ("fails: devices::it_works\n", "", "no `fails"),
            ("says: a: b\nsays: c\n", "", "no `says"),
            ("fails", "fail", "`fail` is not a key"),
            ("says: c", "says:", "has no value"),
            ("says: c", "says c", "has no `key: value`"),
            (DIFF, "", "no diff"),
            ("@@ -1,3", "@@ -1,9", "can't be read"),
        ] {
            let text = format!("{HEAD}{DIFF}").replace(from, to);
            let error = format!("{:#}", parse(Path::new("a/b/c.patch"), &text).unwrap_err());
            assert!(error.contains(words), "{error}");
        }
        for path in ["b/c.patch", "a/b/c.rs"] {
            assert!(parse(Path::new(path), &format!("{HEAD}{DIFF}")).is_err());
        }
    }
}
