//! Completions, in the shells themselves.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::student::Student;

/// What a shell offers for each of several lines. The last word is the one to complete.
const OFFERS: [(&str, &[&str]); 6] = [
    ("cargo course hin", &["hint"]),
    ("cargo course hint one/", &["one/first", "one/second"]),
    ("cargo course hint one/s", &["one/second"]),
    ("cargo course list --pa", &["--path"]),
    ("cargo course test 0", &["01_one", "02_two"]),
    ("cargo course teach mistakes tw", &["two/third"]),
];

/// Runs a program in a shell after the course's script for this shell, and returns its output.
fn run(shell: &str, options: &[&str], before: &str, program: &str) -> String {
    // Two tests use bash, and may run at the same time.
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let student = Student::new(&format!("completions_{}", RUNS.fetch_add(1, Ordering::Relaxed)));
    student.write("completions", &student.says(&["completions", shell]));
    student.write("program", &format!("{before}\nsource completions\n{program}\n"));
    let output =
        Command::new(shell).args(options).arg("program").current_dir(&student.root).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

const BASH: &str = r#"
offers() {
    COMP_WORDS=($1) COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
    _cargo_course cargo "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
    echo "${COMPREPLY[*]}"
}"#;

#[test]
fn bash_completes_commands_options_and_exercises() {
    for (line, offered) in OFFERS {
        let output = run("bash", &["--norc"], "", &format!("{BASH}\noffers '{line}'"));
        assert_eq!(output.split_whitespace().collect::<Vec<_>>(), offered, "{line}");
    }
}

#[test]
fn bash_leaves_the_rest_of_cargo_to_its_own_completion() {
    let own = "own() { COMPREPLY=(check clean); }\ncomplete -F own cargo";
    // Sourced twice, the script must not take itself for Cargo's completion.
    let program =
        format!("source completions\n{BASH}\noffers 'cargo c'\noffers 'cargo course hin'\ncomplete -p cargo");
    assert_eq!(
        run("bash", &["--norc"], own, &program),
        "check clean course\nhint\ncomplete -o bashdefault -o default -F _cargo_course cargo\n"
    );
    assert_eq!(run("bash", &["--norc"], "", &format!("{BASH}\noffers 'cargo co'")), "course\n");
}

#[test]
#[ignore = "needs fish; CI runs it"]
fn fish_completes_in_shells() {
    for (line, offered) in OFFERS {
        let output = run("fish", &["--no-config"], "", &format!("complete --do-complete '{line}'"));
        let names: Vec<&str> = output.lines().filter_map(|line| line.split('\t').next()).collect();
        assert_eq!(names, offered, "{line}");
    }
    let own = "complete --command cargo --no-files --arguments test";
    assert_eq!(run("fish", &["--no-config"], own, "complete --do-complete 'cargo tes'"), "test\n");
}

/// Types a line and Tab in an interactive zsh, and prints the line that results. An own completion of Cargo offers `test`.
const ZSH: &str = r#"
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'PS1= PS2=; autoload -Uz compinit; compinit -u -D; _cargo() { compadd test }; source completions; print rea''dy'
zpty -r shell output '*ready*'
zpty -w -n shell "$line"$'\t\C-a: \C-e\n'
zpty -w shell 'print "do""ne"'
zpty -r shell output '*done*'
print -r -- "$output"
zpty -d shell"#;

#[test]
#[ignore = "needs zsh; CI runs it"]
fn zsh_completes_in_shells() {
    let lines =
        OFFERS.iter().filter(|(_, offered)| offered.len() == 1).map(|(line, offered)| (*line, offered[0]));
    for (line, offered) in lines.chain([("cargo tes", "test")]) {
        let output = run("zsh", &["-f"], "", &format!("line='{line}'\n{ZSH}"));
        let before = line.rsplit_once(' ').map_or("", |(before, _)| before);
        assert!(output.contains(&format!("{before} {offered}")), "{line}: {output:?}");
    }
}
