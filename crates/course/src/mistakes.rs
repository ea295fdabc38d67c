//! Known wrong answers that a check must catch with a helpful message.
//!
//! `tests/mistakes/init/devices/off_by_one.patch` makes the solution to the exercise `init/devices` wrong. Its first
//! lines describe the mistake, name the check that must fail, and list words that the check's message must contain. A
//! unified diff follows, so `git apply` accepts the file too:
//! ```text
//! mistake: all GPUs are refused, because of `<` instead of `<=`
//! fails: devices::all_gpus_can_be_opened
//! says: GPUs were requested
//! --- a/solutions/01_init/src/devices.rs
//! +++ b/solutions/01_init/src/devices.rs
//! @@ -19,5 +19,5 @@
//! ```

use std::path::Path;

use anyhow::{Context, bail, ensure};

use crate::answer_patch::{AnswerPatch, Head, file_text};

/// The folder of the mistakes, relative to the root of the course.
pub const FOLDER: &str = "tests/mistakes";

/// One mistake.
#[derive(Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The diff from the solution.
    pub patch: AnswerPatch,
    /// A description of what is wrong.
    pub what: String,
    /// The check that must fail.
    pub fails: String,
    /// The words that the check's message must contain.
    pub says: Vec<String>,
}

impl Mistake {
    /// Returns a question for students who see the wrong program. It names the rule that the program breaks, in the words
    /// of the check that must fail; [`Self::what`] answers it.
    pub fn question(&self) -> String {
        let check = self.fails.rsplit("::").next().unwrap_or_default().replace('_', " ");
        format!("Which line breaks the rule “{check}”, and what happens instead?")
    }

    /// Returns the text of the patch file.
    pub fn text(&self) -> String {
        let mut head = vec![("mistake", self.what.as_str()), ("fails", &self.fails)];
        head.extend(self.says.iter().map(|says| ("says", says.as_str())));
        file_text(&head, &self.patch.diff)
    }
}

/// Reads all mistakes.
///
/// # Errors
/// Fails if there are none, or if one is malformed; the error names its path.
pub fn read(root: &Path) -> anyhow::Result<Vec<Mistake>> {
    let mistakes = read_each(root)?.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    ensure!(!mistakes.is_empty(), "{} contains no mistakes", root.join(FOLDER).display());
    Ok(mistakes)
}

/// Reads all mistakes. A malformed mistake is an error that names its path.
///
/// # Errors
/// Fails if the folder can't be read.
pub fn read_each(root: &Path) -> anyhow::Result<Vec<anyhow::Result<Mistake>>> {
    AnswerPatch::read_each(root, FOLDER, mistake)
}

fn mistake(patch: AnswerPatch, head: Head) -> anyhow::Result<Mistake> {
    let (mut what, mut fails, mut says) = (None, None, Vec::new());
    for (key, value) in head {
        match key.as_str() {
            "mistake" => what = Some(value),
            "fails" => fails = Some(value),
            "says" => says.push(value),
            other => bail!("`{other}` is not a valid key; the keys are `mistake`, `fails`, and `says`"),
        }
    }
    let what = what.context("its head must contain a line `mistake: what is wrong`")?;
    let fails = fails.context("its head must contain a line `fails: the check that must fail`")?;
    ensure!(!says.is_empty(), "its head must contain a line `says: words in the check's message`");
    Ok(Mistake { patch, what, fails, says })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::Change;

    const HEAD: &str = "mistake: it's wrong\nfails: devices::it_works\nsays: a: b\nsays: c\n";
    const DIFF: &str =
        "--- a/solutions/x.rs\n+++ b/solutions/x.rs\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n";

    fn parse(path: &str, text: &str) -> anyhow::Result<Mistake> {
        let (patch, head) = AnswerPatch::parse(FOLDER, Path::new(path), text)?;
        mistake(patch, head)
    }

    fn good() -> Mistake {
        parse("init/devices/wrong.patch", &format!("{HEAD}{DIFF}")).unwrap()
    }

    #[test]
    fn a_head_names_the_check_and_its_words() {
        let mistake = good();
        assert_eq!((mistake.patch.exercise.as_str(), mistake.patch.name.as_str()), ("init/devices", "wrong"));
        assert_eq!(
            (mistake.fails.as_str(), &mistake.says[..]),
            ("devices::it_works", &["a: b".into(), "c".into()][..])
        );
        assert_eq!(mistake.patch.changed_file().unwrap(), "solutions/x.rs");
        assert_eq!(mistake.text(), format!("{HEAD}{DIFF}"));
        assert_eq!(mistake.question(), "Which line breaks the rule “it works”, and what happens instead?");
        let apart = parse("init/devices/wrong.patch", &format!("{HEAD}\n{DIFF}")).unwrap();
        assert_eq!(apart, mistake, "an empty line may separate the head from the diff");
    }

    #[test]
    fn a_diff_applies_where_its_lines_have_moved_and_nowhere_else() {
        assert_eq!(good().patch.apply("one\ntwo\nthree\n").unwrap(), "one\n2\nthree\n");
        assert_eq!(good().patch.apply("zero\n\none\ntwo\nthree\n").unwrap(), "zero\n\none\n2\nthree\n");
        let error = good().patch.apply("one\nTWO\nthree\n").unwrap_err().to_string();
        assert_eq!(error, "tests/mistakes/init/devices/wrong.patch doesn't apply to init/devices");
    }

    #[test]
    fn its_correction_is_the_diff_back_to_the_solution() {
        let expected =
            [(Change::Same, "one"), (Change::Removed, "2"), (Change::Added, "two"), (Change::Same, "three")];
        let correction = good().patch.correction().unwrap();
        assert_eq!(correction, expected.map(|(change, line)| (change, line.to_owned())));
    }

    #[test]
    fn a_missing_or_unknown_line_is_an_error() {
        for (from, to, words) in [
            ("mistake: it's wrong\n", "", "a line `mistake: "),
            ("fails: devices::it_works\n", "", "a line `fails: "),
            ("says: a: b\nsays: c\n", "", "a line `says: "),
            ("fails", "fail", "`fail` is not a valid key"),
            ("says: c", "says:", "is missing"),
            ("says: c", "says c", "must have the form `key: value`"),
            (DIFF, "", "no diff"),
            ("@@ -1,3", "@@ -1,9", "can't parse the diff"),
        ] {
            let text = format!("{HEAD}{DIFF}").replace(from, to);
            let error = format!("{:#}", parse("a/b/c.patch", &text).unwrap_err());
            assert!(error.contains(words), "{error}");
        }
        for path in ["b/c.patch", "a/b/c.rs"] {
            assert!(parse(path, &format!("{HEAD}{DIFF}")).is_err());
        }
    }
}
