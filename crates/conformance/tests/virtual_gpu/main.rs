//! Tests cudarc on the virtual libraries. Each check has its own process, and therefore a fresh driver.

mod batches;
mod calls;
mod child;
mod clusters;
mod contexts;
mod cooperative;
mod device;
mod driver;
mod frees;
mod functions;
mod golden;
mod graph_nodes;
mod graphs;
mod heap;
mod host_functions;
mod host_memory;
mod images;
mod interprocess;
mod introspection;
mod leaks;
mod libraries;
mod litmus;
mod managed;
mod nccl;
mod nccl_errors;
mod nccl_graphs;
mod nccl_log;
mod nccl_management;
mod nccl_memory;
mod nccl_parameters;
mod nccl_processes;
mod nccl_threads;
mod nccl_values;
mod nccl_wrong;
mod occupancy;
mod one_sided;
mod order;
mod overlap;
mod peers;
mod point_to_point;
mod pools;
mod printf;
mod races;
mod random;
mod rank_processes;
mod raw;
mod rows;
mod same_reports;
mod shareable_handles;
mod shared_between_processes;
mod shared_overruns;
mod shared_races;
mod stream_values;
mod strict;
mod symbols;
mod tensor_maps;
mod textures;
mod thread_streams;
mod time;
mod topology;
mod trace;
mod traffic;
mod twins;
mod two_processes;
mod virtual_memory;

use std::process::ExitCode;
use std::time::Duration;

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;

/// The virtual GPU's timeout in these checks. Even a busy machine reports errors faster. Only one check waits for the
/// timeout.
const TIMEOUT: Duration = Duration::from_secs(4);

fn main() -> ExitCode {
    if let Some(ended) = child::run() {
        return ended;
    }
    // Run this before changing the environment below, because a check may have chosen this process's environment.
    if let Some(code) = rank_processes::obey(&[&nccl_processes::PROGRAMS, nccl_wrong::PROGRAMS].concat()) {
        return code;
    }
    // SAFETY: no other thread is running yet.
    unsafe {
        std::env::set_var("LAB_TIER", "virtual");
        std::env::set_var("VIRTUAL_GPU_COUNT", "8");
        std::env::set_var("VIRTUAL_GPU_CHECKS", "error");
        std::env::set_var("VIRTUAL_GPU_TOPOLOGY", "classroom");
        std::env::set_var("VIRTUAL_GPU_TIMEOUT", TIMEOUT.as_secs_f64().to_string());
    }
    let checks = [
        batches::checks(),
        calls::checks(),
        contexts::checks(),
        cooperative::checks(),
        driver::checks(),
        frees::checks(),
        functions::checks(),
        graph_nodes::checks(),
        graphs::checks(),
        heap::checks(),
        host_functions::checks(),
        host_memory::checks(),
        images::checks(),
        interprocess::checks(),
        introspection::checks(),
        leaks::checks(),
        libraries::checks(),
        litmus::checks(),
        peers::checks(),
        managed::checks(),
        nccl::checks(),
        nccl_errors::checks(),
        nccl_graphs::checks(),
        nccl_log::checks(),
        nccl_management::checks(),
        nccl_parameters::checks(),
        nccl_memory::checks(),
        nccl_processes::checks(),
        nccl_threads::checks(),
        nccl_values::checks(),
        nccl_wrong::checks(),
        occupancy::checks(),
        one_sided::checks(),
        order::checks(),
        overlap::checks(),
        point_to_point::checks(),
        pools::checks(),
        printf::checks(),
        races::checks(),
        random::checks(),
        rows::checks(),
        same_reports::checks(),
        shareable_handles::checks(),
        shared_between_processes::checks(),
        shared_overruns::checks(),
        shared_races::checks(),
        stream_values::checks(),
        strict::checks(),
        symbols::checks(),
        clusters::checks(),
        tensor_maps::checks(),
        textures::checks(),
        thread_streams::checks(),
        time::checks(),
        topology::checks(),
        traffic::checks(),
        trace::checks(),
        virtual_memory::checks(),
    ];
    lab::check::run(checks.concat())
}

/// Returns the driver's text for an error.
fn text(error: DriverError) -> String {
    error.error_string().unwrap().to_string_lossy().into_owned()
}

/// Panics unless `text` contains all of `words`.
#[track_caller]
fn contains(text: &str, words: &[&str]) {
    for words in words {
        assert!(text.contains(words), "no `{words}` in:\n{text}");
    }
}

/// Checks that a call fails with this code, and that its text contains all of `words`.
#[track_caller]
fn fails<T>(result: Result<T, DriverError>, code: CUresult, words: &[&str]) {
    let Err(error) = result else { panic!("no error, expected {code:?}") };
    assert_eq!(error.0, code, "{error}");
    contains(&text(error), words);
}
