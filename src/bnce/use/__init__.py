"""What a trained model is for."""
