//! `cargo course doctor`: reports what this machine has, what runs on it, and what is missing.

mod diagnosis;
mod environment;
mod evidence;
mod hardware;
mod libraries;
mod smoke_test;
mod workshop;

use std::path::Path;
use std::process::ExitCode;

use course::syllabus::Course;

use crate::session::{columns, print_exactly};
use diagnosis::{Status, shown};

/// Runs all examinations, and prints the diagnoses.
pub(crate) fn run(
    root: &Path,
    json: bool,
    for_workshop: bool,
    evidence: Option<&Path>,
) -> anyhow::Result<ExitCode> {
    let mut diagnoses = libraries::diagnoses();
    diagnoses.extend(libraries::tiers());
    diagnoses.extend(hardware::gpus());
    diagnoses.extend(environment::diagnoses(std::env::vars_os()));
    diagnoses.push(hardware::memory());
    diagnoses.push(hardware::shared_memory());
    diagnoses.push(smoke_test::run());
    if for_workshop {
        diagnoses.extend(workshop::diagnoses(root)?);
    }
    if json {
        print_exactly(&format!("{}\n", serde_json::to_string_pretty(&diagnoses)?))?;
    } else {
        print_exactly(&shown(&diagnoses, columns().unwrap_or(usize::MAX)))?;
    }
    if for_workshop {
        let file = workshop::write(root, &diagnoses)?;
        eprintln!("\nname this file after you, and send it to the workshop's organizer: {}", file.display());
    }
    if let Some(file) = evidence {
        evidence::write(root, &Course::read(root)?, &diagnoses, file)?;
        eprintln!("\nwrote {}; the book's page on machines says how to send it", file.display());
    }
    let is_good = diagnoses.iter().all(|diagnosis| diagnosis.status != Status::Bad);
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
