//! The checks for the module's programs.

#[path = "../../../tests/01_init/launch.rs"]
#[expect(dead_code, reason = "the exercises' checks use more of it")]
mod launch;
#[path = "../../../tests/01_init/programs.rs"]
mod programs;

fn main() -> std::process::ExitCode {
    lab::check::run(programs::checks())
}
