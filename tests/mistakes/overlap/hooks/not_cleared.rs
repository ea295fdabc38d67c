// mistake: what a rank does not use counts with the gradient of the step before
// fails: hooks::what_one_rank_does_not_use_is_averaged_too
// says: what lay there before was averaged too: it has to be cleared

use cudarc::driver::CudaViewMut;
use cudarc::nccl::Comm;
use lab::Trainable;

use collectives::all_reduce::average_in_place;

pub fn step(comm: &Comm, model: &mut impl Trainable) -> anyhow::Result<()> {
    let (compute, communication) = (model.stream().clone(), comm.stream());
    let layout = model.layout().to_vec();
    let mut left = layout.len();
    let mut average_down_to = |parameter: usize, gradients: &mut CudaViewMut<f32>| {
        communication.wait(&compute.record_event(None)?)?;
        while left > parameter {
            left -= 1;
            average_in_place(comm, &mut gradients.slice_mut(layout[left].clone()))?;
        }
        anyhow::Ok(())
    };
    model.backward(&mut average_down_to)?;
    average_down_to(0, &mut model.gradients_mut())?;
    compute.wait(&communication.record_event(None)?)?;
    model.descend()
}
