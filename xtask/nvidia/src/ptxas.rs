//! Compares NVIDIA's PTX assembler with the virtual GPU's PTX front end.

mod assembler;
mod known;
mod mutants;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::report::{Comparison, Report};
use crate::wheel;
use assembler::{Assembler, Target};
use mutants::Mutant;

/// The packages with an assembler: their versions, and where it is.
const PACKAGES: [(&str, &str, &str); 2] = [
    ("nvidia-cuda-nvcc-cu12", "12.9.86", "nvidia/cuda_nvcc/bin/ptxas"),
    ("nvidia-cuda-nvcc", "13.5.37", "nvidia/cu13/bin/ptxas"),
];

/// The folders with the repository's PTX.
const FOLDERS: [&str; 2] = ["crates/lab/kernels", "crates/conformance/tests"];

/// The least number of modules that ptxas refuses; fewer would mean that they are not made as intended.
const LEAST_REFUSED: usize = 400;

/// The oldest architecture that the course supports.
const OLDEST: Target = Target::new(70);

/// Assembles everything that the repository has, and everything that is wrong with it.
pub(crate) fn compare(root: &Path, report: &mut Report) -> anyhow::Result<()> {
    let sources = sources(root)?;
    let mut assemblers = Vec::new();
    for (package, version, path) in PACKAGES {
        match wheel::fetch(root, package, version) {
            Ok(folder) => assemblers.push(Assembler::new(version, &folder.join(path))?),
            Err(why) => report.skip(format!("ptxas {version}"), &why),
        }
    }
    for assembler in &assemblers {
        report.add(shipped(assembler, &sources)?);
    }
    if !assemblers.is_empty() {
        report.add(mutants(&assemblers, &sources)?);
    }
    Ok(())
}

/// Returns the repository's PTX files.
fn sources(root: &Path) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let mut sources = BTreeMap::new();
    let mut folders: Vec<PathBuf> = FOLDERS.iter().map(|folder| root.join(folder)).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "ptx") {
                let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                sources.insert(path.strip_prefix(root).unwrap_or(&path).to_owned(), text);
            }
        }
    }
    ensure!(!sources.is_empty(), "the repository has no PTX");
    Ok(sources)
}

/// Assembles each file for each architecture that its target allows.
fn shipped(assembler: &Assembler, sources: &BTreeMap<PathBuf, String>) -> anyhow::Result<Comparison> {
    let mut runs = Vec::new();
    for (path, text) in sources {
        let own = Target::of(text).with_context(|| format!("{} has no target", path.display()))?;
        let targets = assembler.targets.iter().filter(|target| **target >= own && **target >= OLDEST);
        runs.extend(targets.map(|target| (path, text, *target)));
    }
    let first = assembler.targets.iter().find(|target| **target >= OLDEST).context("no architecture")?;
    let last = assembler.targets.last().context("no architecture")?;
    let results = assembler::in_parallel(&runs, |(_, text, target)| {
        // ptxas can't optimize a module for a debugger, and optimizing for every architecture takes minutes.
        let is_optimized = !text.contains(", debug") && (Target::of(text) == Some(*target) || target == last);
        assembler.messages(text, *target, if is_optimized { 3 } else { 0 })
    })?;
    let mut comparison = Comparison::new(format!("ptxas {}, {first} to {last}", assembler.version));
    for (path, text) in sources {
        let ours = virtual_gpu_ptx::load(text);
        comparison.holds(ours.is_ok(), || format!("{}: the front end refuses it", path.display()));
    }
    for ((path, _, target), messages) in runs.iter().zip(results) {
        let unexpected: Vec<&String> = messages.iter().filter(|it| !known::is_expected(it)).collect();
        comparison
            .holds(unexpected.is_empty(), || format!("{} for {target}: {}", path.display(), unexpected[0]));
    }
    Ok(comparison)
}

/// Compares modules with a mistake: what every assembler refuses, the front end must refuse. What they accept after all,
/// it must accept. [`known`] lists the exceptions.
fn mutants(assemblers: &[Assembler], sources: &BTreeMap<PathBuf, String>) -> anyhow::Result<Comparison> {
    let modules = right_modules(assemblers, sources)?;
    let mutants = mutants::all(&modules);
    let results = assembler::in_parallel(&mutants, |mutant| messages(assemblers, &mutant.text))?;

    let (mut refused, mut accepted, mut expected) = (0, 0, 0);
    let mut comparison = Comparison::new("modules with a mistake");
    for (mutant, messages) in mutants.iter().zip(&results) {
        let is_crash = messages.iter().flatten().any(|message| message == assembler::CRASH);
        let refusals: Vec<&String> =
            messages.iter().filter_map(|all| all.iter().find(|it| is_refusal(it))).collect();
        let (is_right, known) = match refusals[..] {
            _ if is_crash => continue,
            [] => (true, known::stricter(mutant)),
            [error, ..] if refusals.len() == assemblers.len() => (false, known::more_lenient(mutant, error)),
            // The versions don't agree.
            _ => continue,
        };
        *(if is_right { &mut accepted } else { &mut refused }) += 1;
        let ours = virtual_gpu_ptx::load(&mutant.text);
        match known {
            Some(_) if ours.is_ok() != is_right => expected += 1,
            _ => comparison.holds(ours.is_ok() == is_right, || difference(mutant, &refusals, ours.err())),
        }
    }
    ensure!(refused >= LEAST_REFUSED, "ptxas refuses only {refused} modules with a mistake");
    comparison.rename(format!(
        "modules with a mistake ({refused} that ptxas refuses, {accepted} that it accepts, {expected} known differences)"
    ));
    Ok(comparison)
}

/// Returns the modules to change: those that the assemblers accept. The others are incomplete, because they are parts of
/// a file.
fn right_modules(
    assemblers: &[Assembler],
    sources: &BTreeMap<PathBuf, String>,
) -> anyhow::Result<Vec<String>> {
    let modules = mutants::modules(sources);
    let messages = assembler::in_parallel(&modules, |module| messages(assemblers, module))?;
    let is_right = messages.iter().map(|all| all.iter().all(Vec::is_empty));
    Ok(modules.iter().zip(is_right).filter(|(_, right)| *right).map(|(module, _)| module.clone()).collect())
}

/// Returns what each assembler says about a module, for an architecture that all of them know.
fn messages(assemblers: &[Assembler], text: &str) -> anyhow::Result<Vec<Vec<String>>> {
    assemblers.iter().map(|assembler| assembler.messages(text, Target::new(90), 0)).collect()
}

fn is_refusal(message: &str) -> bool {
    message.contains("error") || message.contains("fatal")
}

fn difference(mutant: &Mutant, refusals: &[&String], ours: Option<virtual_gpu_ptx::LoadError>) -> String {
    let Mutant { kind, change, .. } = mutant;
    match (refusals, ours) {
        (_, Some(ours)) => format!("{kind}: {change}\nptxas accepts it, but the front end says: {ours}"),
        (refusals, None) => format!(
            "{kind}: {change}\nthe front end accepts it, but {}",
            refusals.first().map_or("", |it| it)
        ),
    }
}
