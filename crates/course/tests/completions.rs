//! Completions, in the shells themselves.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context;
use lab::{Check, ensure};

fn main() -> ExitCode {
    lab::check::run(vec![
        Check::new("completions::bash_completes_commands_options_and_exercises", bash).needs_program("bash"),
        Check::new("completions::bash_leaves_the_rest_of_cargo_to_its_own_completion", bash_with_own)
            .needs_program("bash"),
        Check::new("completions::fish_completes_too", fish).needs_program("fish"),
        Check::new("completions::zsh_completes_too", zsh).needs_program("zsh"),
    ])
}

/// What a shell offers for each of several lines. The last word is the one to complete.
const OFFERS: [(&str, &[&str]); 9] = [
    ("cargo course hin", &["hint"]),
    ("cargo course hint init/b", &["init/buffers"]),
    ("cargo course hint overlap/bu", &["overlap/bucket_plan", "overlap/buckets"]),
    ("cargo course list --pa", &["--path"]),
    ("cargo course path half", &["half-day"]),
    ("cargo course score scale/ca", &["scale/capstone"]),
    ("cargo course test 03", &["03_grouping"]),
    ("cargo course teach mistakes init/b", &["init/buffers"]),
    ("cargo course teach mistakes --path half", &["half-day"]),
];

/// Runs a program in a shell after the course's script for this shell, and returns its output.
fn run(shell: &str, options: &[&str], before: &str, program: &str) -> anyhow::Result<String> {
    let course = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let script =
        printed(Command::new(env!("CARGO_BIN_EXE_course")).args(["completions", shell]).current_dir(course))?;
    // Two checks use bash, and may run at the same time.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("completions_{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("completions"), script)?;
    std::fs::write(folder.join("program"), format!("{before}\nsource completions\n{program}\n"))?;
    let output = printed(Command::new(shell).args(options).arg("program").current_dir(&folder));
    std::fs::remove_dir_all(&folder)?;
    output
}

/// Returns what a command prints. It must succeed.
fn printed(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("can't run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Compares what a shell offers for a line with what it must offer.
fn compare(line: &str, got: &[&str], expected: &[&str]) -> anyhow::Result<()> {
    ensure!(got == expected, "for `{line}`, the shell offers {got:?}; expected {expected:?}");
    Ok(())
}

const BASH: &str = r#"
offers() {
    COMP_WORDS=($1) COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
    _cargo_course cargo "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
    echo "${COMPREPLY[*]}"
}"#;

fn bash() -> anyhow::Result<()> {
    for (line, offered) in OFFERS {
        let output = run("bash", &["--norc"], "", &format!("{BASH}\noffers '{line}'"))?;
        compare(line, &output.split_whitespace().collect::<Vec<_>>(), offered)?;
    }
    Ok(())
}

fn bash_with_own() -> anyhow::Result<()> {
    let own = "own() { COMPREPLY=(check clean); }\ncomplete -F own cargo";
    // Sourced twice, the script must not take itself for Cargo's completion.
    let program =
        format!("source completions\n{BASH}\noffers 'cargo c'\noffers 'cargo course hin'\ncomplete -p cargo");
    let output = run("bash", &["--norc"], own, &program)?;
    let expected =
        ["check clean course", "hint", "complete -o bashdefault -o default -F _cargo_course cargo"];
    compare("cargo c", &output.lines().collect::<Vec<_>>(), &expected)?;
    let output = run("bash", &["--norc"], "", &format!("{BASH}\noffers 'cargo co'"))?;
    compare("cargo co", &[output.trim()], &["course"])
}

fn fish() -> anyhow::Result<()> {
    for (line, offered) in OFFERS {
        let output = run("fish", &["--no-config"], "", &format!("complete --do-complete '{line}'"))?;
        let mut names: Vec<&str> = output.lines().filter_map(|line| line.split('\t').next()).collect();
        // fish has an order of its own.
        names.sort_unstable();
        compare(line, &names, offered)?;
    }
    let own = "complete --command cargo --no-files --arguments test";
    let output = run("fish", &["--no-config"], own, "complete --do-complete 'cargo tes'")?;
    compare("cargo tes", &[output.trim()], &["test"])
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

fn zsh() -> anyhow::Result<()> {
    let lines =
        OFFERS.iter().filter(|(_, offered)| offered.len() == 1).map(|(line, offered)| (*line, offered[0]));
    for (line, offered) in lines.chain([("cargo tes", "test")]) {
        let output = run("zsh", &["-f"], "", &format!("line='{line}'\n{ZSH}"))?;
        let before = line.rsplit_once(' ').map_or("", |(before, _)| before);
        ensure!(output.contains(&format!("{before} {offered}")), "for `{line}`, zsh makes {output:?}");
    }
    Ok(())
}
