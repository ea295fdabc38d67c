//! The settings: environment variables, which are read once. Each error states the variable and its value.

use std::path::PathBuf;
use std::time::Duration;

use toml::{Table, Value};

use crate::device::{NAME, uuid};
use crate::time::preset::Preset;
use crate::time::trace;
use virtual_gpu_core::handle::MAX_GPUS;

/// The default preset.
const CLASSROOM: &str = "classroom";

const TIMEOUT: &str = "VIRTUAL_GPU_TIMEOUT";
const BOOTSTRAP_TIMEOUT: &str = "VIRTUAL_GPU_BOOTSTRAP_TIMEOUT";
const FAIL: &str = "VIRTUAL_GPU_FAIL";
const GPU_NAME: &str = "VIRTUAL_GPU_NAME";
const NCCL: &str = "VIRTUAL_NCCL";
const NCCL_INIT: &str = "VIRTUAL_NCCL_INIT";

/// The timeout if no variable sets one.
const DEFAULT_TIMEOUT: Timeout = Timeout { duration: Duration::from_secs(10), variable: TIMEOUT };

/// Every environment variable that the virtual GPU reads.
const SWITCHES: [&str; 8] = [
    "VIRTUAL_GPU_COUNT",
    "VIRTUAL_GPU_CHECKS",
    TIMEOUT,
    BOOTSTRAP_TIMEOUT,
    "VIRTUAL_GPU_TOPOLOGY",
    "VIRTUAL_GPU_TRACE",
    FAIL,
    GPU_NAME,
];

/// How to report problems that have no CUDA error (`VIRTUAL_GPU_CHECKS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// The call that detects a problem fails.
    Error,
    /// Problems are printed.
    Warn,
    /// The virtual GPU does not look for problems.
    Off,
}

/// How long a wait may last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timeout {
    /// The longest time.
    pub duration: Duration,
    /// The environment variable that sets it.
    pub variable: &'static str,
}

impl Timeout {
    fn read(variable: &'static str, value: &str) -> Result<Self, String> {
        let seconds = value.trim().parse::<f64>().ok().filter(|seconds| (0.01..=86_400.0).contains(seconds));
        let duration = seconds.map(Duration::from_secs_f64).ok_or_else(|| {
            format!("{variable}={value}: it must be a number of seconds from 0.01 to 86400")
        })?;
        Ok(Self { duration, variable })
    }
}

/// A call that only returns an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingCall {
    /// The C function, with or without a version suffix: `cuMemcpyDtoHAsync` or `cuMemcpyDtoHAsync_v2`.
    pub function: String,
    /// The number of the call among all calls to the function in this process, counting from 1.
    pub nth: u64,
}

impl FailingCall {
    /// Reads a list such as `cuMemcpyDtoHAsync:2,ncclAllReduce:1`.
    fn read_list(value: &str) -> Result<Vec<Self>, String> {
        let read = |entry: &str| {
            let (function, nth) = entry.trim().split_once(':')?;
            let nth = nth.parse().ok().filter(|nth| *nth > 0)?;
            Some(Self { function: function.to_owned(), nth })
        };
        let calls: Option<Vec<_>> = value.split(',').map(read).collect();
        calls.ok_or_else(|| {
            format!("{FAIL}={value}: it must be a list of FUNCTION:K, each for the K-th call to a function, such as cuMemAllocAsync:2")
        })
    }
}

/// A strict NCCL (`VIRTUAL_NCCL`): one that does everything that an NCCL of this version may do, and not what would be
/// convenient. `virtual_gpu_nccl::strict` lists it, with sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrictNccl {
    /// The version, encoded as in `ncclGetVersion`: 23007 is 2.30.7.
    pub version: i32,
    /// How long each rank takes to create a communicator (`VIRTUAL_NCCL_INIT`).
    pub init: Duration,
}

impl StrictNccl {
    /// The version if the variable names none. Creating a communicator takes so little time that suites stay quick.
    const NEWEST: Self = Self { version: 23_007, init: Duration::from_millis(20) };

    /// Reads `strict`, or `strict-2.21.5` for another version.
    fn read(value: &str) -> Result<Self, String> {
        let version = |text: &str| {
            let mut numbers = text.split('.').map(|number| number.parse::<u8>().ok().filter(|&it| it < 100));
            let [major, minor, patch] = [numbers.next()??, numbers.next()??, numbers.next()??].map(i32::from);
            numbers
                .next()
                .is_none()
                .then_some(Self { version: 10_000 * major + 100 * minor + patch, ..Self::NEWEST })
        };
        let read = match value.trim() {
            "strict" => Some(Self::NEWEST),
            other => other.strip_prefix("strict-").and_then(version),
        };
        read.ok_or_else(|| {
            format!("{NCCL}={value}: it must be strict, or strict-VERSION, such as strict-2.21.5")
        })
    }
}

/// The virtual GPU's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The number of GPUs that the process sees: all GPUs of the node (`VIRTUAL_GPU_COUNT`; by default the preset's
    /// number), or only the visible ones.
    pub gpus: usize,
    /// The node's GPUs that are visible, in order (`CUDA_VISIBLE_DEVICES`). `None` means all.
    pub visible: Option<Vec<usize>>,
    /// The name that each GPU reports (`VIRTUAL_GPU_NAME`; by default [`device::NAME`](NAME)).
    pub name: String,
    /// What reports do (`VIRTUAL_GPU_CHECKS`; by default `error`).
    pub checks: Checks,
    /// How long a wait with an unknown outcome may last (`VIRTUAL_GPU_TIMEOUT`; by default 10 s).
    pub timeout: Timeout,
    /// How long a rank waits for the others in a call that creates or ends a communicator
    /// (`VIRTUAL_GPU_BOOTSTRAP_TIMEOUT`; by default [`Self::timeout`]).
    pub bootstrap_timeout: Timeout,
    /// The node whose times are modeled (`VIRTUAL_GPU_TOPOLOGY`; by default `classroom`).
    pub preset: Preset,
    /// The file that a trace of everything that ran is written to when the process ends (`VIRTUAL_GPU_TRACE`; by
    /// default none).
    pub trace: Option<PathBuf>,
    /// Calls that return an error and do nothing (`VIRTUAL_GPU_FAIL`; by default none).
    pub failing: Vec<FailingCall>,
    /// Whether NCCL does everything that it may do (`VIRTUAL_NCCL`; by default it does not).
    pub strict_nccl: Option<StrictNccl>,
}

impl Default for Config {
    fn default() -> Self {
        let preset = Preset::find(CLASSROOM).expect("it is built in, and a test reads it");
        Self {
            gpus: preset.gpus,
            visible: None,
            name: NAME.to_owned(),
            checks: Checks::Error,
            timeout: DEFAULT_TIMEOUT,
            bootstrap_timeout: DEFAULT_TIMEOUT,
            preset,
            trace: None,
            failing: Vec::new(),
            strict_nccl: None,
        }
    }
}

impl Config {
    /// Reads the environment.
    ///
    /// # Errors
    /// Returns a sentence that names the variable, its value, and the allowed values.
    pub fn from_env() -> Result<Self, String> {
        Self::refuse_unknown(std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned()))?;
        Self::read(&|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// Reads the settings of a virtual driver that is installed as a machine's own. `settings` is a TOML table from the
    /// names of environment variables to strings. The environment's own `VIRTUAL_…` variables are not read then, and
    /// all others apply if the table doesn't have them.
    ///
    /// # Errors
    /// Fails like [`Self::from_env`], or if `settings` is no such table.
    pub fn of_machine(settings: &str) -> Result<Self, String> {
        let settings: Table = settings.parse().map_err(|error: toml::de::Error| error.to_string())?;
        for (name, value) in &settings {
            if !value.is_str() {
                return Err(format!("{name}: invalid type: {}, expected a string", value.type_str()));
            }
        }
        Self::refuse_unknown(settings.keys().cloned())?;
        Self::read(&|name| {
            let from_environment = || match name.starts_with("VIRTUAL_") {
                true => None,
                false => std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()),
            };
            settings.get(name).and_then(Value::as_str).map(str::to_owned).or_else(from_environment)
        })
    }

    /// Rejects a variable that does not exist, because setting it would silently have no effect.
    fn refuse_unknown(names: impl Iterator<Item = String>) -> Result<(), String> {
        for name in names.filter(|name| name.starts_with("VIRTUAL_GPU_")) {
            if !SWITCHES.contains(&name.as_str()) {
                return Err(format!(
                    "{name}: the virtual GPU has no such setting; it has {}",
                    SWITCHES.join(", ")
                ));
            }
        }
        Ok(())
    }

    /// Reads the settings from any source of variables, as [`Self::from_env`] does from the environment.
    pub fn read(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, String> {
        let mut config = Self::default();
        if let Some(value) = variable("VIRTUAL_GPU_TOPOLOGY") {
            config.preset = Preset::find(value.trim())
                .map_err(|error| format!("VIRTUAL_GPU_TOPOLOGY={value}: {error}"))?;
            config.gpus = config.preset.gpus;
        }
        if let Some(value) = variable("VIRTUAL_GPU_COUNT") {
            config.gpus = value.trim().parse().ok().filter(|count| (1..=MAX_GPUS).contains(count)).ok_or_else(
                || format!("VIRTUAL_GPU_COUNT={value}: the number of virtual GPUs must be a whole number from 1 to {MAX_GPUS}"),
            )?;
        }
        if let Some(value) = variable("CUDA_VISIBLE_DEVICES") {
            let visible = visible(&value, config.gpus);
            config.gpus = visible.len();
            config.visible = Some(visible);
        }
        if let Some(value) = variable("VIRTUAL_GPU_CHECKS") {
            config.checks = match value.trim() {
                "error" => Checks::Error,
                "warn" => Checks::Warn,
                "off" => Checks::Off,
                _ => return Err(format!("VIRTUAL_GPU_CHECKS={value}: it must be one of error, warn, off")),
            };
        }
        if let Some(value) = variable(TIMEOUT) {
            config.timeout = Timeout::read(TIMEOUT, &value)?;
            config.bootstrap_timeout = config.timeout;
        }
        if let Some(value) = variable(BOOTSTRAP_TIMEOUT) {
            config.bootstrap_timeout = Timeout::read(BOOTSTRAP_TIMEOUT, &value)?;
        }
        if let Some(value) = variable("VIRTUAL_GPU_TRACE") {
            let path = PathBuf::from(value.replace("%p", &std::process::id().to_string()));
            trace::check(&path)
                .map_err(|error| format!("VIRTUAL_GPU_TRACE={value}: the file cannot be written: {error}"))?;
            config.trace = Some(path);
        }
        if let Some(value) = variable(GPU_NAME) {
            if value.is_empty() || value.contains('\0') {
                return Err(format!("{GPU_NAME}={value}: it must be a name"));
            }
            config.name = value;
        }
        if let Some(value) = variable(FAIL) {
            config.failing = FailingCall::read_list(&value)?;
        }
        if let Some(value) = variable(NCCL) {
            config.strict_nccl = Some(StrictNccl::read(&value)?);
        }
        if let Some(value) = variable(NCCL_INIT) {
            let init = Timeout::read(NCCL_INIT, &value)?.duration;
            let strict = config.strict_nccl.as_mut();
            strict.ok_or_else(|| format!("{NCCL_INIT}={value}: only {NCCL}=strict reads it"))?.init = init;
        }
        Ok(config)
    }
}

impl Config {
    /// Returns the node-wide number of the GPU that the process calls `gpu`.
    pub fn physical(&self, gpu: usize) -> usize {
        self.visible.as_ref().and_then(|visible| visible.get(gpu).copied()).unwrap_or(gpu)
    }
}

/// Returns the GPUs in a `CUDA_VISIBLE_DEVICES` list, in list order: "If one of the indices is invalid, only the
/// devices whose index precedes the invalid index are visible" (CUDA Programming Guide, "CUDA Environment Variables").
/// Entries are numbers (any text may follow them, as `strtoul` allows) or UUID prefixes. If a GPU is listed twice, none
/// is visible, as with real drivers.
fn visible(list: &str, gpus: usize) -> Vec<usize> {
    let number = |entry: &str| {
        let entry = entry.trim_start();
        if entry.starts_with("GPU-") {
            let mut fitting = (0..gpus).filter(|&gpu| uuid_text(gpu).starts_with(entry.trim_end()));
            return fitting.next().filter(|_| fitting.next().is_none());
        }
        let end = entry.find(|c: char| !c.is_ascii_digit()).unwrap_or(entry.len());
        entry[..end].parse::<usize>().ok().filter(|&gpu| gpu < gpus)
    };
    let visible: Vec<usize> = list.split(',').map_while(number).collect();
    let twice = visible.iter().enumerate().any(|(at, gpu)| visible[..at].contains(gpu));
    if twice { Vec::new() } else { visible }
}

/// Returns a GPU's UUID as `nvidia-smi` prints it.
fn uuid_text(gpu: usize) -> String {
    let digits: String = uuid(gpu).iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
    format!("GPU-{}", parts.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &'static str, value: &'static str) -> Result<Config, String> {
        Config::read(&move |asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn a_gpu_has_the_name_that_is_set() {
        assert_eq!(read(GPU_NAME, "NVIDIA H100 80GB HBM3").unwrap().name, "NVIDIA H100 80GB HBM3");
        assert_eq!(Config::default().name, NAME);
        assert_eq!(read(GPU_NAME, "").unwrap_err(), "VIRTUAL_GPU_NAME=: it must be a name");
    }

    #[test]
    fn a_strict_nccl_may_have_another_version() {
        let version = |value| read("VIRTUAL_NCCL", value).map(|config| config.strict_nccl.unwrap().version);
        assert_eq!((version("strict"), version("strict-2.18.5")), (Ok(23_007), Ok(21_805)));
        for value in ["", "on", "strict-", "strict-2.21", "strict-2.21.5.1", "strict-2.221.5"] {
            let error = version(value).unwrap_err();
            assert!(error.starts_with(&format!("VIRTUAL_NCCL={value}: ")), "{error}");
        }
    }

    #[test]
    fn only_a_strict_nccl_takes_time_to_create_a_communicator() {
        let both = |name: &str| match name {
            NCCL => Some("strict-2.21.5".to_owned()),
            NCCL_INIT => Some("2".to_owned()),
            _ => None,
        };
        let strict = StrictNccl { version: 22_105, init: Duration::from_secs(2) };
        assert_eq!(Config::read(&both).unwrap().strict_nccl, Some(strict));
        let error = read(NCCL_INIT, "2").unwrap_err();
        assert_eq!(error, "VIRTUAL_NCCL_INIT=2: only VIRTUAL_NCCL=strict reads it");
    }

    #[test]
    fn calls_that_fail_are_a_list() {
        let failing = read("VIRTUAL_GPU_FAIL", "cuMemAllocAsync:2, ncclAllReduce:1").unwrap().failing;
        let call = |function: &str, nth| FailingCall { function: function.to_owned(), nth };
        assert_eq!(failing, [call("cuMemAllocAsync", 2), call("ncclAllReduce", 1)]);
        for value in ["", "cuMemAllocAsync", "cuMemAllocAsync:0", "cuMemAllocAsync:x", "a:1,"] {
            let error = read("VIRTUAL_GPU_FAIL", value).unwrap_err();
            assert!(error.starts_with(&format!("VIRTUAL_GPU_FAIL={value}:")), "{error}");
        }
    }

    #[test]
    fn a_bad_value_is_refused_by_name() {
        for value in ["0", "-1", "abc", "1025", "", "1.5"] {
            let error = read("VIRTUAL_GPU_COUNT", value).unwrap_err();
            assert!(error.starts_with(&format!("VIRTUAL_GPU_COUNT={value}:")), "{error}");
        }
        assert!(read("VIRTUAL_GPU_CHECKS", "loud").unwrap_err().contains("loud"));
        assert!(
            read("VIRTUAL_GPU_TOPOLOGY", "moon")
                .unwrap_err()
                .contains("moon: it must be one of classroom, dgx-h100")
        );
        for value in ["0", "-3", "inf", "NaN", "soon"] {
            for variable in [TIMEOUT, BOOTSTRAP_TIMEOUT] {
                assert_eq!(
                    read(variable, value).unwrap_err(),
                    format!("{variable}={value}: it must be a number of seconds from 0.01 to 86400")
                );
            }
        }
    }

    #[test]
    fn a_switch_that_does_not_exist_is_refused() {
        let refuse = |name: &str| Config::refuse_unknown([name.to_owned()].into_iter());
        assert!(
            refuse("VIRTUAL_GPU_TRACER")
                .unwrap_err()
                .starts_with("VIRTUAL_GPU_TRACER: the virtual GPU has no such")
        );
        assert!(refuse("VIRTUAL_GPU_COUNT").is_ok() && refuse("CUDA_VISIBLE_DEVICES").is_ok());
    }

    #[test]
    fn a_machine_has_its_own_settings() {
        let config = Config::of_machine("VIRTUAL_GPU_COUNT = \"3\"\nCUDA_VISIBLE_DEVICES = \"2\"").unwrap();
        assert_eq!((config.gpus, config.physical(0)), (1, 2));
        assert!(Config::of_machine("VIRTUAL_GPU_COUNTS = \"3\"").unwrap_err().contains("no such setting"));
        assert!(Config::of_machine("VIRTUAL_GPU_COUNT = 3").unwrap_err().contains("expected a string"));
    }

    #[test]
    fn visible_devices_end_at_the_first_invalid_entry() {
        let of = |list| visible(list, 4);
        assert_eq!(of("2,1"), [2, 1]);
        assert_eq!(of("0,2,-1,1"), [0, 2]);
        assert_eq!(of(" 3 , 0"), [3, 0]);
        for none in ["", "4", "-1", "NoDevFiles", "1,1", "GPU-8932f937"] {
            assert!(of(none).is_empty(), "{none}");
        }
        assert_eq!(of("GPU-76697274-7561-6c20-4750-552000000003,1"), [3, 1]);
        let config = read("CUDA_VISIBLE_DEVICES", "5,2").unwrap();
        assert_eq!((config.gpus, config.physical(0), config.physical(1)), (2, 5, 2));
    }

    #[test]
    fn values_and_defaults() {
        assert_eq!(Config::read(&|_| None).unwrap(), Config::default());
        assert_eq!(read("VIRTUAL_GPU_COUNT", " 3 ").unwrap().gpus, 3);
        let two_nodes = |name: &str| (name == "VIRTUAL_GPU_TOPOLOGY").then(|| "2x8-h100".to_owned());
        assert_eq!(Config::read(&two_nodes).unwrap().gpus, 16);
        let both = |name: &str| two_nodes(name).or((name == "VIRTUAL_GPU_COUNT").then(|| "3".to_owned()));
        assert_eq!(Config::read(&both).unwrap().gpus, 3);
        assert_eq!(read("VIRTUAL_GPU_CHECKS", "off").unwrap().checks, Checks::Off);
        let half = Duration::from_millis(500);
        let config = read(TIMEOUT, "0.5").unwrap();
        assert_eq!((config.timeout.duration, config.bootstrap_timeout), (half, config.timeout));
        let config = read(BOOTSTRAP_TIMEOUT, "0.5").unwrap();
        assert_eq!((config.timeout, config.bootstrap_timeout.duration), (DEFAULT_TIMEOUT, half));
    }
}
