// mistake: the sum stays on the host
// fails: backends::the_sum_comes_back_to_every_gpu
// says: these are the rank's own values: the sum was not copied back to this GPU

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut};
use lab::{HostGroup, Stopwatch};

pub fn staged_sum(
    group: &HostGroup,
    rank: usize,
    stream: &Arc<CudaStream>,
    buffer: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    let own = stream.clone_dtoh(buffer)?;
    stream.synchronize()?;
    let mut sum = vec![0.0_f32; own.len()];
    for values in group.all_gather(rank, own)?.iter() {
        for (sum, value) in sum.iter_mut().zip(values) {
            *sum += value;
        }
    }
    Ok(())
}

pub fn times_as_long(
    stream: &Arc<CudaStream>,
    rounds: usize,
    mut staged: impl FnMut() -> anyhow::Result<()>,
    mut nccl: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    let measure = |work: &mut dyn FnMut() -> anyhow::Result<()>| {
        work()?;
        let watch = Stopwatch::start(stream)?;
        (0..rounds).try_for_each(|_| work())?;
        watch.microseconds()
    };
    Ok(measure(&mut staged)? / measure(&mut nccl)?)
}
