//! Lists the files that `cargo course doctor --evidence` wrote on machines with real GPUs.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;

/// The folder with the files.
const FOLDER: &str = "site/evidence";

/// The parts of an evidence file that the list shows.
#[derive(Deserialize)]
struct Evidence {
    tiers: [String; 2],
    driver: String,
    diagnoses: Vec<Diagnosis>,
    checks: Vec<Check>,
}

#[derive(Deserialize)]
struct Diagnosis {
    what: String,
    says: String,
}

#[derive(Deserialize)]
struct Check {
    verdict: String,
    seconds: f64,
}

/// Returns a table of the evidence files, or a sentence if there are none.
///
/// # Errors
/// Fails if a file can't be read, or is no evidence of the real tier.
pub(crate) fn table(root: &Path) -> anyhow::Result<String> {
    let folder = root.join(FOLDER);
    let mut files = Vec::new();
    if folder.is_dir() {
        for file in std::fs::read_dir(&folder)? {
            files.push(file?.path());
        }
    }
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    if files.is_empty() {
        return Ok("There is no evidence file yet.\n".to_owned());
    }
    let mut table = String::from(
        "| file | GPUs | driver, NCCL | checks passed, failed, ignored | seconds |\n|---|---|---|---|---|\n",
    );
    for file in files {
        table += &row(&file).with_context(|| file.display().to_string())?;
    }
    Ok(table)
}

fn row(file: &Path) -> anyhow::Result<String> {
    let evidence: Evidence = serde_json::from_slice(&std::fs::read(file)?)?;
    let real = evidence.tiers[1].strip_prefix("real: ").context("it was not recorded on the real tier")?;
    let gpu = evidence.diagnoses.iter().find(|diagnosis| diagnosis.what == "GPU 0");
    let gpu = gpu.and_then(|gpu| gpu.says.split(',').next()).unwrap_or_default();
    let count = |verdict: &str| evidence.checks.iter().filter(|check| check.verdict == verdict).count();
    let seconds: f64 = evidence.checks.iter().map(|check| check.seconds).sum();
    let mut row = String::new();
    writeln!(
        row,
        "| `{}` | {gpu} | {}; {real} | {}, {}, {} | {seconds:.0} |",
        file.file_name().unwrap_or_default().to_string_lossy(),
        evidence.driver,
        count("ok"),
        count("failed"),
        count("ignored")
    )?;
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_a_row_and_must_be_of_the_real_tier() {
        let root = std::env::temp_dir().join(format!("evidence_{}", std::process::id()));
        let folder = root.join(FOLDER);
        assert!(table(&root).unwrap().contains("no evidence file"));
        std::fs::create_dir_all(&folder).unwrap();
        let text = r#"{"tiers": ["real: 8 GPUs, NCCL 2.27.3", "real: 8 GPUs, NCCL 2.27.3"], "driver": "CUDA 12.8",
            "diagnoses": [{"what": "GPU 0", "says": "NVIDIA H100 80GB HBM3, compute capability 9.0"}],
            "checks": [{"verdict": "ok", "seconds": 1.4}, {"verdict": "ignored", "seconds": 0.0}]}"#;
        std::fs::write(folder.join("8-h100.json"), text).unwrap();
        let made = table(&root).unwrap();
        let row =
            "| `8-h100.json` | NVIDIA H100 80GB HBM3 | CUDA 12.8; 8 GPUs, NCCL 2.27.3 | 1, 0, 1 | 1 |\n";
        assert!(made.ends_with(row), "{made}");
        std::fs::write(folder.join("virtual.json"), text.replace("real: ", "virtual: ")).unwrap();
        assert!(format!("{:#}", table(&root).unwrap_err()).contains("virtual.json: it was not recorded"));
        std::fs::remove_dir_all(root).unwrap();
    }
}
