//! Makes an exercise's CUDA and NCCL calls fail, one at a time. The exercise must return each failure as an error.

use anyhow::{anyhow, bail};
use cudarc::nccl::result::group_end;
use cudarc::nccl::{Comm, Id};

use crate::calls::{Call, Threads, VirtualDriver, shown};
use crate::explain::{Readable, causes_text};
use crate::refusal::caught;
use crate::tier::streams;

/// The maximum number of runs. No exercise makes as many calls.
const MOST_CALLS: u64 = 500;

/// Runs one of the exercise's functions repeatedly. In run `k`, its `k`-th CUDA or NCCL call fails, until a run makes
/// fewer than `k` calls. Each failure must be returned as an error that contains the cause.
///
/// `prepare` creates what one run needs, and returns the run. Only calls from the exercise's own lines fail, on this thread, and
/// during the run. On a real GPU, where no call can be made to fail, the function runs once.
///
/// After a failed call, a communicator is unusable, so `prepare` must create a new one. Create it in a world of one
/// rank, because other ranks would wait for the rank whose call failed.
///
/// # Errors
/// Fails if the function panics, returns `Ok`, leaves a group open, or returns an error without the cause. Also fails if `prepare`
/// or the run without a failure fails.
pub fn each_call_fails<R>(
    function: &str,
    mut prepare: impl FnMut() -> anyhow::Result<R>,
) -> anyhow::Result<()>
where
    R: FnOnce() -> anyhow::Result<()>,
{
    on_threads(Threads::This, function, &mut || Ok(Box::new(prepare()?)))
}

/// Like [`each_call_fails`], but for calls from all threads. Use it for a function that starts threads.
///
/// # Errors
/// Fails like [`each_call_fails`].
pub fn each_call_of_all_threads_fails<R>(
    function: &str,
    mut prepare: impl FnMut() -> anyhow::Result<R>,
) -> anyhow::Result<()>
where
    R: FnOnce() -> anyhow::Result<()>,
{
    on_threads(Threads::All, function, &mut || Ok(Box::new(prepare()?)))
}

/// Creates a communicator with one rank on a new stream on GPU 0, for [`each_call_fails`].
///
/// # Errors
/// Returns any error from the driver or NCCL.
pub fn world_of_one() -> anyhow::Result<Comm> {
    let stream = streams(1)?.remove(0);
    stream.context().bind_to_thread()?;
    let id = Id::new().readable()?;
    Comm::from_rank(stream, 0, 1, id).readable()
}

/// A run of an exercise's function.
type Run<'a> = Box<dyn FnOnce() -> anyhow::Result<()> + 'a>;

/// Runs the function like [`each_call_fails`]. It is not generic, so that it is not compiled again for each check.
fn on_threads<'a>(
    threads: Threads,
    function: &str,
    prepare: &mut dyn FnMut() -> anyhow::Result<Run<'a>>,
) -> anyhow::Result<()> {
    let Some(driver) = VirtualDriver::find()? else {
        println!("`{function}`: real GPUs can't be made to fail, so failures are not checked here");
        return prepare()?();
    };
    for nth in 1..=MOST_CALLS {
        let run = prepare()?;
        let (returned, failed) = driver.with_failure(nth, threads, || caught(run))?;
        let Some(failed) = failed else {
            // With one rank, there may be no work, and so no call whose error could be lost.
            if nth == 1 {
                println!("`{function}` makes no CUDA or NCCL calls here, so none was made to fail");
            }
            return returned.map_err(|panic| anyhow!("`{function}` {panic}"))?;
        };
        judge(function, &failed, returned.map_err(|panic| panic.to_string()))?;
        // This succeeds only if a group is open.
        if group_end().is_ok() {
            bail!(
                "`{function}` left a group open after {} failed; end the group on every path out of the function\n  the call that \
                 this check made fail:\n{}",
                failed.function,
                shown(&failed.line)
            );
        }
    }
    Ok(())
}

/// Judges the result of `function` after a call has failed.
fn judge(function: &str, failed: &Call, returned: Result<anyhow::Result<()>, String>) -> anyhow::Result<()> {
    let call = &failed.function;
    let made_to_fail = format!("the call that this check made fail:\n{}", shown(&failed.line));
    match returned {
        Err(panic) => {
            // The value is the failure that this check caused.
            let panic =
                panic.split_once("on an `Err` value").map_or(&*panic, |(before, _)| before.trim_end());
            bail!(
                "`{function}` panicked after {call} failed; it must return the error\n  it {panic}\n  {made_to_fail}"
            )
        }
        Ok(Ok(())) => bail!(
            "`{function}` returned Ok although {call} failed; it must return the error\n  {made_to_fail}"
        ),
        Ok(Err(error)) if !has_cause(&error, failed) => bail!(
            "`{function}` returned an error without the cause after {call} failed; pass the error on with `?`, or keep it as a \
             source\n  the error: {}\n  {made_to_fail}",
            causes_text(&error).replace('\n', "\n  "),
        ),
        Ok(Err(_)) => Ok(()),
    }
}

/// Returns whether an error contains the failure's code or the name of the function that failed. Together with a
/// different code, the name proves nothing: after a send has failed, the end of the group reports that a receive has no
/// `ncclSend`.
fn has_cause(error: &anyhow::Error, failed: &Call) -> bool {
    let text = format!("{error:?}");
    let codes = ["CUDA_ERROR_OPERATING_SYSTEM", "ncclSystemError"];
    let others =
        ["CUDA_ERROR_", "ncclInvalid", "ncclInternalError", "ncclUnhandledCudaError", "ncclRemoteError"];
    let has_other_code = others.iter().any(|code| text.contains(code));
    codes.iter().any(|code| text.contains(code)) || (text.contains(&failed.function) && !has_other_code)
}
