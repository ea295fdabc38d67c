//! Training whose ranks are processes, of which one is killed.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::Id;
use lab::disk::Folder;
use lab::{ElasticComm, Readable, ensure, processes};

use super::supervisor::{Loss, Supervisor};
use super::{LEARNING_RATE, Member, STEPS, TIMEOUT, compare, start};
use crate::scale::elastic::{Model, Replica};

pub(super) const WORLD_SIZE: usize = 3;
const LOSS: Loss = Loss { rank: 1, steps: 2, late: None };

/// The variables of a process: its rank, and a folder that all ranks share.
const RANK: &str = "LAB_TEST_RANK";
const FOLDER: &str = "LAB_TEST_FOLDER";

/// A model that kills the process of the lost rank in the step that this rank does not take.
struct Deadly<'a>(Member<'a>);

impl Model for Deadly<'_> {
    const SAMPLES: usize = Member::SAMPLES;

    fn differentiate(
        &self,
        step: u64,
        samples: Range<usize>,
        weights: &CudaView<f32>,
        gradient: &mut CudaViewMut<f32>,
    ) -> anyhow::Result<()> {
        if self.0.rank == LOSS.rank && step == LOSS.steps {
            processes::kill_this();
        }
        self.0.differentiate(step, samples, weights, gradient)
    }
}

pub(super) fn a_killed_process_is_left_behind() -> anyhow::Result<()> {
    let folder = Folder::temporary()?;
    let variables: Vec<_> = (0..WORLD_SIZE)
        .map(|rank| vec![(RANK, rank.to_string()), (FOLDER, folder.path().display().to_string())])
        .collect();
    // This waits until no process is left.
    let said = processes::run(&[], &variables)?;
    match &said[LOSS.rank] {
        Ok(_) => bail!(
            "rank {}: `train` returned without a call to `differentiate` for step {}, in which this process is killed",
            LOSS.rank,
            LOSS.steps
        ),
        Err(error) if !error.contains(processes::KILLED) => bail!("{error}"),
        Err(_) => {}
    }
    for (rank, said) in said.into_iter().enumerate() {
        if let Err(error) = said
            && rank != LOSS.rank
        {
            bail!("{error}");
        }
    }
    Ok(())
}

/// Trains as one rank.
pub(super) fn train_as_a_process() -> anyhow::Result<String> {
    let rank: usize = std::env::var(RANK)?.parse()?;
    let folder = PathBuf::from(std::env::var(FOLDER)?);
    let supervisor = Supervisor::of_processes(WORLD_SIZE, &[LOSS], folder.clone());
    let stream = lab::streams(WORLD_SIZE)?.swap_remove(rank);
    let comm = ElasticComm::from_rank(stream, rank, WORLD_SIZE, id_for_all(rank, &folder)?)?;
    let model = Deadly(Member::new(&comm, &supervisor)?);
    let mut replica = Replica::new(&comm, &start())?;
    let trained = replica.train(comm, &model, &model.0, STEPS, LEARNING_RATE);
    if let Some(problem) = model.0.problem.take() {
        bail!(problem);
    }
    let comm = trained
        .with_context(|| format!("rank {rank}, after the process of rank {} was killed", LOSS.rank))?;
    let got = comm.stream().clone_dtoh(&replica.weights)?;
    comm.stream().synchronize()?;
    ensure!(
        comm.world_size() == WORLD_SIZE - 1,
        "rank {rank}: `train` returned a communicator with {} ranks; expected {}, because the process of rank {} was killed",
        comm.world_size(),
        WORLD_SIZE - 1,
        LOSS.rank
    );
    compare(WORLD_SIZE, &[LOSS], &model.0, &got)?;
    Ok(String::new())
}

/// Creates an id on rank 0, and returns it on each rank.
fn id_for_all(rank: usize, folder: &Path) -> anyhow::Result<Id> {
    let (file, part) = (folder.join("id"), folder.join("id.part"));
    if rank == 0 {
        let id = Id::new().readable()?;
        fs::write(&part, id.internal().map(|byte| byte as u8))?;
        // A rank that finds the file reads all of it.
        fs::rename(&part, &file)?;
        return Ok(id);
    }
    let since = Instant::now();
    while !file.exists() {
        ensure!(since.elapsed() < TIMEOUT, "rank {rank}: the process of rank 0 has created no id");
        std::thread::sleep(Duration::from_millis(1));
    }
    let bytes: [u8; 128] = fs::read(file)?.try_into().ok().context("an id of 128 bytes")?;
    Ok(Id::uninit(bytes.map(|byte| byte as _)))
}
