//! The checks for the module's programs.

#[path = "../../../tests/05_overlap/programs.rs"]
mod programs;

fn main() -> std::process::ExitCode {
    lab::check::run(programs::checks())
}
