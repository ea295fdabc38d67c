//! Checks for buffers that are freed early, and the holes that they leave in the pool.

use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use cudarc::driver::{CudaSlice, CudaStream};
use lab::{Expected, ensure};

use super::{MIB, PoolReport, allocate, truth};
use crate::multi_gpu::pools::{Buffers, Layer, allocate as allocate_layers};

pub(super) fn layers_have_their_buffers() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    let layers =
        [(1031, 37), (5, 700), (64, 1)].map(|(parameters, activations)| Layer { parameters, activations });
    let Buffers { parameters, activations } = allocate_layers(&stream, &layers)?;
    compare("parameters", &stream, &parameters, &layers.map(|layer| layer.parameters))?;
    compare("activations", &stream, &activations, &layers.map(|layer| layer.activations))?;
    compare("parameters", &stream, &allocate_layers(&stream, &[])?.parameters, &[])
}

/// Compares buffers with zeros of these lengths.
fn compare(
    name: &str,
    stream: &Arc<CudaStream>,
    buffers: &[CudaSlice<f32>],
    lengths: &[usize],
) -> anyhow::Result<()> {
    let got: Vec<usize> = buffers.iter().map(CudaSlice::len).collect();
    ensure!(
        got == lengths,
        "`allocate` returned `{name}` of {got:?} elements, expected one buffer for each layer, of {lengths:?}"
    );
    for (index, buffer) in buffers.iter().enumerate() {
        let name = format!("`{name}` of layer {index}");
        Expected::of(&name, &vec![0.0; buffer.len()]).exactly(&stream.clone_dtoh(buffer)?)?;
    }
    Ok(())
}

/// The number of layers. A real pool may grow in steps of tens of MiB, and the buffers of all layers take many such steps.
const LAYERS: usize = 64;
/// 1 MiB of parameters and 1.5 MiB of activations. A granule of 2 MiB is longer than a layer's activations. If these are between
/// parameters, no granule ever becomes free, so a pool can neither release nor remap one.
const LAYER: Layer =
    Layer { parameters: MIB / size_of::<f32>(), activations: 3 * MIB / 2 / size_of::<f32>() };
/// The maximum share of the pool that may be idle. Without holes, only the last step in which the pool grew is idle. If all
/// activations are between parameters, the share is 96 of 256 MiB.
const MOST_IDLE: f64 = 0.25;

pub(super) fn freed_activations_leave_one_hole() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    let Buffers { parameters, activations } = allocate_layers(&stream, &[LAYER; LAYERS])?;
    drop(activations);
    stream.synchronize()?;
    // The next step has other sizes.
    let long = allocate(&stream, LAYERS * LAYER.activations * size_of::<f32>())?;
    let report = settled(&stream)?;
    let idle = report.idle_share();
    let holes = (LAYERS * LAYER.activations * size_of::<f32>()) as u64;
    let cause = if report.reserved - report.used >= holes - holes / 4 {
        "\n  likely cause: each layer's activations are between the parameters of two layers, so each leaves its own hole, and the \
         long buffer fits in none of them"
    } else {
        ""
    };
    ensure!(
        idle <= MOST_IDLE,
        "`allocate` made the buffers of {LAYERS} layers, all activations were freed, and then a buffer as long as all of them was \
         allocated: now `idle_share` is {idle:.3}, expected at most {MOST_IDLE}\n  {report:?}{cause}"
    );
    drop((parameters, long));
    Ok(())
}

/// Returns the pool's figures. A real pool may not release all that it can in the first synchronization, so this tries again.
fn settled(stream: &CudaStream) -> anyhow::Result<PoolReport> {
    const TRIES: usize = 10;
    let gpu = stream.context().ordinal();
    for _ in 1..TRIES {
        stream.synchronize()?;
        if truth(gpu)?.idle_share() <= MOST_IDLE {
            break;
        }
        sleep(Duration::from_millis(5));
    }
    truth(gpu)
}
