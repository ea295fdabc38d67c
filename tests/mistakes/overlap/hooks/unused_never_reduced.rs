// mistake: the hook averages its own gradient alone: what a rank does not use, it never averages
// fails: hooks::what_one_rank_does_not_use_is_averaged_too
// says: disagree

use cudarc::driver::CudaViewMut;
use cudarc::nccl::Comm;
use lab::Trainable;

use collectives::all_reduce::average_in_place;

pub fn step(comm: &Comm, model: &mut impl Trainable) -> anyhow::Result<()> {
    let (compute, communication) = (model.stream().clone(), comm.stream());
    let layout = model.layout().to_vec();
    compute.memset_zeros(&mut model.gradients_mut())?;
    let mut average_down_to = |parameter: usize, gradients: &mut CudaViewMut<f32>| {
        communication.wait(&compute.record_event(None)?)?;
        average_in_place(comm, &mut gradients.slice_mut(layout[parameter].clone()))?;
        anyhow::Ok(())
    };
    model.backward(&mut average_down_to)?;
    compute.wait(&communication.record_event(None)?)?;
    model.descend()
}
