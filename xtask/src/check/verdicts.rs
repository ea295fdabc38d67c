//! Judges the check results for a starter, a mistake, or a deletion.

use course::mistakes::Mistake;
use course::syllabus::Exercise;

use super::deletions::Deletion;
use super::test_output::Outcomes;

/// Returns the problems with a starter. Every check of an exercise must fail at a `todo!` in the exercise's own file.
pub(super) fn of_starter(exercise: &Exercise, outcomes: &Outcomes) -> Vec<String> {
    let Exercise { id, file, .. } = exercise;
    let source = file.split_once('/').map_or(file.as_str(), |(_, source)| source);
    let mut problems = Vec::new();
    if outcomes.passed.is_empty() && outcomes.failed.is_empty() {
        problems.push(format!("{id}: no check ran; their names must start with {}", exercise.filter()));
    }
    for name in &outcomes.passed {
        problems
            .push(format!("{id}: {name} passes without an answer; make it depend on what the exercise does"));
    }
    for (name, message) in &outcomes.failed {
        if !(message.contains("not yet implemented: ") && message.contains(&format!("{source}:"))) {
            problems.push(format!(
                "{id}: {name} doesn't fail at a todo! in {source}; the check must reach it. Its message:\n{message}"
            ));
        }
    }
    problems
}

/// Returns the problem with a deletion, if any. The deletion must make its recorded check fail with the recorded words,
/// or no check if it is harmless.
pub(super) fn of_deletion(deletion: &Deletion, outcomes: &Outcomes) -> Option<String> {
    let name = deletion.name();
    let Some(fails) = &deletion.fails else {
        let (check, message) = outcomes.failed.first()?;
        return Some(format!("{name} is recorded as harmless, but {check} fails:\n{message}"));
    };
    of_check(&name, fails, &deletion.says, outcomes)
}

/// Returns the problems with a right answer. All checks must accept the answer.
pub(super) fn of_alternative(path: &str, outcomes: &Outcomes) -> Vec<String> {
    if outcomes.passed.is_empty() && outcomes.failed.is_empty() {
        return vec![format!("{path}: no check ran")];
    }
    let failed = outcomes.failed.iter();
    failed
        .map(|(check, message)| format!("{path} is right, but {check} rejects it. Its message:\n{message}"))
        .collect()
}

/// Returns the problem with a mistake, if any. The mistake must make its check fail with the words it lists.
pub(super) fn of_mistake(mistake: &Mistake, outcomes: &Outcomes) -> Option<String> {
    of_check(&mistake.patch.path(), &mistake.fails, &mistake.says, outcomes)
}

/// Returns the problem if the check `fails` doesn't fail with these words. `name` is that of the mistake or the deletion.
fn of_check(name: &str, fails: &String, says: &[String], outcomes: &Outcomes) -> Option<String> {
    if outcomes.passed.contains(fails) {
        return Some(format!("{name} passes {fails}; make the check catch it"));
    }
    let Some((_, message)) = outcomes.failed.iter().find(|(check, _)| check == fails) else {
        return Some(format!("{name}: {fails} didn't run; is the name correct, and can the check run here?"));
    };
    let missing: Vec<&str> =
        says.iter().map(String::as_str).filter(|words| !message.contains(words)).collect();
    (!missing.is_empty()).then(|| {
        format!(
            "{name}: {fails} fails, but its message doesn't contain `{}`. Its message:\n{message}",
            missing.join("`, `")
        )
    })
}

#[cfg(test)]
mod tests {
    use course::answer_patch::AnswerPatch;
    use course::mistakes;

    use super::*;

    #[test]
    fn an_alternative_must_pass_every_check() {
        assert!(!of_alternative("a.patch", &Outcomes::default()).is_empty());
        assert!(
            of_alternative("a.patch", &failed("b::it_works", "got 1"))[0].contains("b::it_works rejects it")
        );
        let passed = Outcomes { passed: vec!["b::it_works".to_owned()], ..Outcomes::default() };
        assert!(of_alternative("a.patch", &passed).is_empty());
    }

    fn mistake() -> Mistake {
        let [exercise, name, what, fails] = ["a/b", "c", "it's wrong", "b::it_works"].map(str::to_owned);
        let patch = AnswerPatch { folder: mistakes::FOLDER, exercise, name, diff: String::new() };
        Mistake { patch, what, fails, says: vec!["got 1".to_owned()] }
    }

    fn failed(check: &str, message: &str) -> Outcomes {
        Outcomes { failed: vec![(check.to_owned(), message.to_owned())], ..Outcomes::default() }
    }

    #[test]
    fn a_mistake_must_fail_in_its_check_with_its_words() {
        assert_eq!(of_mistake(&mistake(), &failed("b::it_works", "got 1")), None);
        let passed = Outcomes { passed: vec!["b::it_works".to_owned()], ..Outcomes::default() };
        for (outcomes, words) in [
            (passed, "passes b::it_works"),
            (failed("b::other", "got 1"), "b::it_works didn't run"),
            (failed("b::it_works", "got 2"), "its message doesn't contain `got 1`"),
        ] {
            let problem = of_mistake(&mistake(), &outcomes).unwrap();
            assert!(
                problem.starts_with("tests/mistakes/a/b/c.patch") && problem.contains(words),
                "{problem}"
            );
        }
    }
}
