//! Parses a test program's output into the results of its checks.

/// The results of all checks in a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcomes {
    /// The names of the checks that passed.
    pub(super) passed: Vec<String>,
    /// The names of the checks that were ignored.
    pub(super) ignored: Vec<String>,
    /// The names and messages of the checks that failed, without the checks' own output.
    pub(super) failed: Vec<(String, String)>,
}

/// Parses a test program's output in libtest's pretty format.
pub(super) fn parse(output: &str) -> Outcomes {
    let mut outcomes = Outcomes::default();
    let mut failing: Option<(String, String)> = None;
    let mut in_message = false;
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" ----")) {
            outcomes.failed.extend(failing.take());
            failing = Some((name.to_owned(), String::new()));
            in_message = true;
        } else if line == "failures:" || line.starts_with("test result: ") {
            outcomes.failed.extend(failing.take());
        } else if let Some((_, message)) = &mut failing {
            in_message &= line != "printed by the check:";
            if in_message {
                message.push_str(line);
                message.push('\n');
            }
        } else if let Some((name, outcome)) =
            line.strip_prefix("test ").and_then(|line| line.split_once(" ... "))
        {
            let name = name.trim().to_owned();
            match outcome {
                "ok" => outcomes.passed.push(name),
                outcome if outcome.starts_with("ignored") => outcomes.ignored.push(name),
                _ => {}
            }
        }
    }
    outcomes.failed.extend(failing);
    outcomes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_is_found_with_its_own_message() {
        let output = "
running 4 tests
test a::one   ... ok
test a::two   ... FAILED
test a::three ... ignored, too few GPUs
test a::four  ... FAILED

failures:

---- a::two ----
it is wrong
  here

printed by the check:
test noise ... ok

---- a::four ----
not yet implemented


failures:
    a::two
    a::four

test result: FAILED. 1 passed; 2 failed; 1 ignored
";
        let outcomes = parse(output);
        assert_eq!(outcomes.passed, ["a::one"]);
        assert_eq!(outcomes.ignored, ["a::three"]);
        let names: Vec<_> =
            outcomes.failed.iter().map(|(name, message)| (name.as_str(), message.trim())).collect();
        assert_eq!(names, [("a::two", "it is wrong\n  here"), ("a::four", "not yet implemented")]);
    }
}
