//! Checks for `init/devices`.

use std::collections::HashSet;
use std::sync::Arc;

use anyhow::{anyhow, bail};
use cudarc::driver::{CudaContext, CudaStream};
use lab::explain::error_text;
use lab::{Budget, Check, Expected, each_call_fails, ensure, irregular, without_panic};

use crate::init::devices::open;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("devices::stream_i_is_on_gpu_i", stream_i_is_on_gpu_i).calls(&["open"]),
        Check::new("devices::every_stream_is_a_new_one", every_stream_is_a_new_one).calls(&["open"]),
        Check::new("devices::each_stream_moves_its_own_data", each_stream_moves_its_own_data)
            .calls(&["open"]),
        Check::new("devices::too_many_is_an_error_with_both_numbers", too_many_is_an_error_with_both_numbers)
            .calls(&["open"]),
        Check::new("devices::none_is_an_empty_list", none_is_an_empty_list).calls(&["open"]),
        Check::new("devices::nothing_else_is_opened", nothing_else_is_opened),
        Check::new("devices::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

fn available() -> anyhow::Result<usize> {
    Ok(usize::try_from(CudaContext::device_count()?)?)
}

/// Never opens more GPUs than there are, so any error is a mistake in the exercise.
fn open_some(count: usize) -> anyhow::Result<Vec<Arc<CudaStream>>> {
    let available = available()?;
    open(count).map_err(|error| {
        anyhow!(
            "there are {available} GPUs, so open({count}) must succeed, but it returned this error:\n  {}",
            error_text(&error)
        )
    })
}

fn stream_i_is_on_gpu_i() -> anyhow::Result<()> {
    for count in 1..=available()? {
        let streams = open_some(count)?;
        ensure!(streams.len() == count, "open({count}) returned {} streams, expected {count}", streams.len());
        let mut seen = HashSet::new();
        for (index, stream) in streams.iter().enumerate() {
            let ordinal = stream.context().ordinal();
            ensure!(ordinal == index, "stream {index} of {count} is on GPU {ordinal}, expected GPU {index}");
            // The ordinal only repeats the number passed to the context, but the UUID comes from the GPU.
            let uuid = stream.context().uuid()?.bytes;
            ensure!(seen.insert(uuid), "stream {index} of {count} is on the same GPU as an earlier stream");
        }
    }
    Ok(())
}

fn every_stream_is_a_new_one() -> anyhow::Result<()> {
    let count = available()?;
    // Both lists stay alive, because the handle of a destroyed stream may be reused.
    let (first, second) = (open_some(count)?, open_some(count)?);
    let mut handles = HashSet::new();
    for stream in first.iter().chain(&second) {
        let gpu = stream.context().ordinal();
        let handle = stream.cu_stream() as usize;
        // In CUDA's headers, these handles are the default streams.
        let shared = match handle {
            0 | 1 => "the default stream",
            2 => "the per-thread default stream",
            _ => "",
        };
        ensure!(shared.is_empty(), "the stream on GPU {gpu} is {shared}, expected a new one");
        ensure!(
            handles.insert(handle),
            "open(…) returned the same stream on GPU {gpu} twice, expected a new one each time"
        );
    }
    Ok(())
}

fn each_stream_moves_its_own_data() -> anyhow::Result<()> {
    let streams = open_some(available()?)?;
    let sent: Vec<Vec<f32>> = (0..streams.len()).map(|gpu| irregular::integers(gpu, 1031)).collect();
    let mut buffers = Vec::new();
    for (stream, values) in streams.iter().zip(&sent) {
        buffers.push(stream.clone_htod(values)?);
    }
    for (gpu, (stream, buffer)) in streams.iter().zip(&buffers).enumerate() {
        let back = stream.clone_dtoh(buffer)?;
        stream.synchronize()?;
        Expected::of(&format!("the buffer that was copied to GPU {gpu} and back"), &sent[gpu])
            .exactly(&back)?;
    }
    Ok(())
}

fn too_many_is_an_error_with_both_numbers() -> anyhow::Result<()> {
    let available = available()?;
    for count in [available + 1, available + 1000, usize::MAX] {
        let opened = without_panic(&format!("open({count}) with {available} GPUs"), || open(count))?;
        let Err(error) = opened else {
            bail!("open({count}) returned Ok, but there are only {available} GPUs; expected an error")
        };
        let text = format!("{error:#}");
        let without_count = text.replacen(&count.to_string(), "", 1);
        let numbers = [(count.to_string(), &text), (available.to_string(), &without_count)];
        let missing = numbers.iter().filter(|(number, text)| !text.contains(number));
        let missing: Vec<&str> = missing.map(|(number, _)| number.as_str()).collect();
        ensure!(
            missing.is_empty(),
            "open({count}) with {available} GPUs: the error must contain both numbers; missing: {}; got: {text}",
            missing.join(", ")
        );
    }
    Ok(())
}

fn none_is_an_empty_list() -> anyhow::Result<()> {
    let streams = open(0)?;
    ensure!(streams.is_empty(), "open(0) returned {} streams, expected none", streams.len());
    Ok(())
}

fn nothing_else_is_opened() -> anyhow::Result<()> {
    let available = available()?;
    let budget = |gpus: usize| {
        let budget = Budget::of("open").contexts(gpus as u64).new_streams(gpus as u64);
        budget.allocations(0).copies(0).modules(0).communicators(0)
    };
    // A limit of 1 explains itself best.
    for count in 1..=available {
        budget(count).spend(|| open_some(count))?;
    }
    budget(0).case("with a `count` of 0").spend(|| open_some(0))?;
    budget(0).case("for more GPUs than there are").spend(|| Ok(open(available + 1).is_ok()))?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    let count = available()?.min(2);
    each_call_fails("open", || Ok(move || open(count).map(drop)))
}
