//! Passes a check's name to the process that runs the check.

use std::ffi::{OsStr, OsString};

/// The variable with the parent and the check: `PID NAME`.
pub(super) const ORDER: &str = "LAB_RUN_ONE_CHECK";

/// The order that the parent gave this process.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) parent: u32,
    pub(super) check: String,
}

impl Order {
    /// Returns the value of [`ORDER`] for a child that runs `check`.
    pub(super) fn text(check: &str) -> OsString {
        format!("{} {check}", std::process::id()).into()
    }

    /// Returns this process's order, if it has one.
    pub(super) fn given() -> Option<Self> {
        std::env::var_os(ORDER).map(|value| Self::read(&value))
    }

    fn read(value: &OsStr) -> Self {
        let text = value.to_string_lossy();
        let (parent, check) = text.split_once(' ').unwrap_or(("", &text));
        Self { parent: parent.parse().unwrap_or(0), check: check.to_owned() }
    }
}

/// Returns the name of the check that this process runs, if it runs one.
pub(super) fn own_check() -> Option<String> {
    Order::given().map(|order| order.check)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_survives_the_environment() {
        let order = Order::read(&Order::text("devices::a sentence with blanks"));
        assert_eq!(
            order,
            Order { parent: std::process::id(), check: "devices::a sentence with blanks".into() }
        );
    }
}
