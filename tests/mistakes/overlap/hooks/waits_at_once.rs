// mistake: the compute stream waits for each average at once
// fails: hooks::communication_runs_beside_the_backward_pass
// says: at no time both
// says: the hook waits for its average at once

use cudarc::driver::CudaViewMut;
use cudarc::nccl::Comm;
use lab::Trainable;

use collectives::all_reduce::average_in_place;

pub fn step(comm: &Comm, model: &mut impl Trainable) -> anyhow::Result<()> {
    let (compute, communication) = (model.stream().clone(), comm.stream());
    let layout = model.layout().to_vec();
    compute.memset_zeros(&mut model.gradients_mut())?;
    let mut left = layout.len();
    let mut average_down_to = |parameter: usize, gradients: &mut CudaViewMut<f32>| {
        communication.wait(&compute.record_event(None)?)?;
        while left > parameter {
            left -= 1;
            average_in_place(comm, &mut gradients.slice_mut(layout[left].clone()))?;
        }
        compute.wait(&communication.record_event(None)?)?;
        anyhow::Ok(())
    };
    model.backward(&mut average_down_to)?;
    average_down_to(0, &mut model.gradients_mut())?;
    compute.wait(&communication.record_event(None)?)?;
    model.descend()
}
