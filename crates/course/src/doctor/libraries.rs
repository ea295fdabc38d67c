//! The driver, NCCL, and NVRTC, and the tiers that they allow.

use lab::explain::error_text;
use lab::tier::{OLDEST_NCCL, Survey, describe, nvrtc_version, survey, tier_for};

use super::diagnosis::{Diagnosis, Status};

/// Describes the installed driver, NCCL, and NVRTC.
pub(super) fn diagnoses() -> Vec<Diagnosis> {
    let survey = survey();
    vec![driver(survey), nccl(survey), nvrtc()]
}

fn driver(survey: &Survey) -> Diagnosis {
    match &survey.driver {
        Ok(driver) => {
            let plural = if driver.gpus == 1 { "" } else { "s" };
            Diagnosis::good("driver", format!("{} GPU{plural}, CUDA {}", driver.gpus, driver.cuda))
        }
        Err(why) => {
            Diagnosis::new("driver", Status::Note, why.clone()).help("the course runs on GPUs in software")
        }
    }
}

fn nccl(survey: &Survey) -> Diagnosis {
    match (&survey.nccl, &survey.driver) {
        (Ok(version), _) if *version < OLDEST_NCCL => {
            let says = format!("NCCL {version}, but the course needs {OLDEST_NCCL} or later");
            Diagnosis::new("NCCL", Status::Bad, says).help("install a newer NCCL, or run with LAB_TIER=virtual")
        }
        (Ok(version), _) => Diagnosis::good("NCCL", format!("NCCL {version}")),
        (Err(why), Err(_)) => Diagnosis::new("NCCL", Status::Note, why.clone()),
        (Err(why), Ok(_)) => Diagnosis::new("NCCL", Status::Bad, why.clone()).help(format!(
            "LD_LIBRARY_PATH is {}; install NCCL from NVIDIA's packages (libnccl2) or from pip (nvidia-nccl-cu12)",
            std::env::var("LD_LIBRARY_PATH")
                .map_or_else(|_| "not set".to_owned(), |path| format!("`{path}`"))
        )),
    }
}

fn nvrtc() -> Diagnosis {
    match nvrtc_version() {
        Ok(version) => Diagnosis::good("NVRTC", version),
        Err(why) => Diagnosis::new("NVRTC", Status::Note, why).help("only kernel authors need it"),
    }
}

/// Describes what the checks will run on, depending on the number of ranks.
pub(super) fn tiers() -> Vec<Diagnosis> {
    let mut diagnoses: Vec<Diagnosis> = Vec::new();
    let mut last = None;
    for ranks in [1, 2, 4, 8] {
        let tier = tier_for(ranks);
        if last.as_ref() == Some(&tier.as_ref().ok().copied()) {
            continue;
        }
        last = Some(tier.as_ref().ok().copied());
        let what = format!("from {ranks} rank{}", if ranks == 1 { "" } else { "s" });
        diagnoses.push(match describe(ranks) {
            Ok(says) => Diagnosis::good(what, says),
            Err(error) => {
                Diagnosis::new(what, if ranks == 1 { Status::Bad } else { Status::Note }, error_text(&error))
            }
        });
    }
    diagnoses
}
