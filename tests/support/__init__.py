"""What several tests need: batches, models of operators, and Spark as an oracle."""
