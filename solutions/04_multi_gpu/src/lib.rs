//! Module 04: a training loop on many GPUs. The model is given; what is parallel is the exercise.

pub mod data_parallel;
pub mod tensor_backward;
pub mod tensor_forward;
