// mistake: the values are sent and summed as `f16`, for fewer bytes
// fails: backends::both_backends_have_the_same_numbers
// says: this is a sum in f16

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut};
use half::f16;
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
            *sum = (f16::from_f32(*sum) + f16::from_f32(*value)).to_f32();
        }
    }
    stream.memcpy_htod(&sum, buffer)?;
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
