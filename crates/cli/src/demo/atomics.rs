//! A row of atomic operations on one word, and what each must return.

use irdma::SendOp;

use super::image;
use super::plan::Operation;

/// One atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// What the word was before, which the operation returns.
    pub original: u64,
    /// What it is afterwards.
    pub result: u64,
    argument: u64,
}

/// The steps of a round. Every other compare-and-swap compares with another value than the word
/// has, and must change nothing.
pub fn steps(operation: Operation, seed: u64, count: usize) -> Vec<Step> {
    let mut word = [0; 8];
    image::message(seed, 0, &mut word);
    let mut original = u64::from_ne_bytes(word);
    let step = |index| {
        let step = match operation {
            Operation::FetchAdd => {
                let add = original | 1;
                Step { original, result: original.wrapping_add(add), argument: add }
            }
            _ if index % 2 == 0 => {
                Step { original, result: original.rotate_left(7) ^ 1, argument: original }
            }
            _ => Step { original, result: original, argument: !original },
        };
        original = step.result;
        step
    };
    (0..count).map(step).collect()
}

impl Step {
    /// The request that does it.
    pub fn request(&self, operation: Operation, remote_addr: u64, rkey: u32) -> SendOp {
        match operation {
            Operation::FetchAdd => SendOp::FetchAdd { remote_addr, rkey, add: self.argument },
            _ => SendOp::CompareSwap {
                remote_addr,
                rkey,
                compare: self.argument,
                swap: self.original.rotate_left(7) ^ 1,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_starts_where_the_one_before_ended() {
        for operation in [Operation::FetchAdd, Operation::CompareSwap] {
            let steps = steps(operation, 5, 6);
            assert!(steps.windows(2).all(|pair| pair[0].result == pair[1].original));
        }
    }

    #[test]
    fn requests_lead_to_the_results() {
        for operation in [Operation::FetchAdd, Operation::CompareSwap] {
            for (index, step) in steps(operation, 9, 6).into_iter().enumerate() {
                let result = match step.request(operation, 1, 2) {
                    SendOp::FetchAdd { add, .. } => step.original.wrapping_add(add),
                    SendOp::CompareSwap { compare, swap, .. } if compare == step.original => swap,
                    SendOp::CompareSwap { .. } => step.original,
                    other => panic!("{other:?}"),
                };
                assert_eq!(result, step.result);
                let swaps = operation == Operation::FetchAdd || index % 2 == 0;
                assert_eq!(step.result != step.original, swaps, "step {index}");
            }
        }
    }
}
