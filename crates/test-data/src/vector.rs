//! Arithmetic of the references on the host.

/// Computes `to += factor · from`, element by element, up to the end of the shorter one.
pub fn add_scaled(to: &mut [f64], from: &[f64], factor: f64) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += factor * from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_element_is_added_times_the_factor() {
        let mut sums = [1.0, 2.0, 3.0];
        add_scaled(&mut sums, &[10.0, 20.0], 0.5);
        assert_eq!(sums, [6.0, 12.0, 3.0]);
    }
}
