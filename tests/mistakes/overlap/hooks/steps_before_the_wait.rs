// mistake: the optimizer steps before the averages are there
// fails: hooks::each_step_is_that_of_one_gpu
// says: data race on GPU
// says: nothing makes stream

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
        anyhow::Ok(())
    };
    model.backward(&mut average_down_to)?;
    average_down_to(0, &mut model.gradients_mut())?;
    model.descend()?;
    Ok(compute.wait(&communication.record_event(None)?)?)
}
